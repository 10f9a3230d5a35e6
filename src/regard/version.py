"""The version of the package. `CITATION.cff` repeats it. A release is tagged with it: `v` and the version."""

__version__ = "0.1.0"
