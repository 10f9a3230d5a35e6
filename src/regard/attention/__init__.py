"""Attention as one equation: a score, a scope and a selection, with any number of heads."""
