"""Metrics, and the evaluation of models with them."""
