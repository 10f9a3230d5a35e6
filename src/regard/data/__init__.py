"""From files to batches: corpora, tokenizers, and an order of batches that is arithmetic."""
