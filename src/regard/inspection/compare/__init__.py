"""Comparisons of systems as text, Markdown, LaTeX and HTML."""
