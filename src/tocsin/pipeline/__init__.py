"""Spark and the files it reads, in the order of the data."""
