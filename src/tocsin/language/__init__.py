"""Parses, checks and translates statements to Spark SQL. This package runs no query."""
