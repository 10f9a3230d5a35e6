"""Metrics, and the evaluation of a model by them."""
