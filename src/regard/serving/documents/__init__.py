"""Texts, HTML and files: split into sentences for translation, and put together again."""
