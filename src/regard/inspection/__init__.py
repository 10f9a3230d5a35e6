"""Inspection: predictions with their attention weights, traces, figures, learning curves and `explain`."""
