"""The language: statements are parsed, checked and translated to Spark SQL here; nothing in this room runs them."""
