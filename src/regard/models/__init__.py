"""Encoders and decoders behind one contract."""
