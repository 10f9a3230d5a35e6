"""Text in tokens: how each kind of tokenizer is learned, read, and drawn from."""
