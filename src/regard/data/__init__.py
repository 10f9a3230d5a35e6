"""From files to batches: corpora, tokenisers, and an order of batches that is arithmetic."""
