"""Pictures of attention weights, and of other numbers."""
