"""What a model looks at: predictions, traces and figures."""
