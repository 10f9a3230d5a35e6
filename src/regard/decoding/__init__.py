"""Decoding: greedy search, beam search and sampling over any decoder, and the predictor from text to text."""
