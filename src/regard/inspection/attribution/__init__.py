"""Scores of source tokens, and their agreement with attention weights."""
