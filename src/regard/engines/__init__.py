"""Engines: what computes the predictions of a model, besides torch."""
