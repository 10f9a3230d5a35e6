"""From files to batches: corpora, tokenizers and batch samplers."""
