"""Fast implementations of the scans and steps in `recurrent`: analytic gradients, cuDNN, Triton."""
