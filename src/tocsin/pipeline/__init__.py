"""Spark and the files that it reads: datasets, landing of feeds, channels, Python functions."""
