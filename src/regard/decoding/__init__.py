"""Search over any decoder, and text in, text out."""
