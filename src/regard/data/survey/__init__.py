"""Checks and statistics of pairs before training: what is wrong with them, and what they contain."""
