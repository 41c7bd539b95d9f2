"""Datasets: typed, keyed tables in the lakehouse."""
