"""Text in tokens: how each kind of tokeniser is learned, read, and drawn from."""
