"""Sweeps: a grid of settings, or a search for good ones, over ordinary runs."""
