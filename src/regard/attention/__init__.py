"""Attention as one equation: a score, a scope, a selection, and any number of heads."""
