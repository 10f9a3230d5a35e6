"""Encoders and decoders with one interface."""
