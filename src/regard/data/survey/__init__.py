"""Pairs looked at before they are learned from: what is wrong with them, and what they are like."""
