"""The server of `regard serve`: models behind the API of LibreTranslate."""
