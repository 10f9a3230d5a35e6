"""The explorer: a web page on localhost that shows what a model attends to. See `docs/explorer-api.md`."""
