"""Encoders of images."""
