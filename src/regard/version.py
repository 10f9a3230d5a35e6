"""The version of the package, which is declared only here. A release is tagged with it: `v` and the version."""

__version__ = "0.1.0"
