"""The public Python interface: train a model, load it, predict with it."""
