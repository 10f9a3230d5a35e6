"""Tensor operations, each with a reference implementation and fast versions."""
