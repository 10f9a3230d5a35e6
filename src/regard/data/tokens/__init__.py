"""Tokenizers: how each kind is learned, loaded, and sampled from."""
