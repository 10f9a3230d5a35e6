"""Models in the formats of other software: export and import."""
