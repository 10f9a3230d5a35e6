"""Traces: predictions with everything that they were computed from."""
