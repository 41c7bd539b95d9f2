"""Datasets: typed, keyed tables in the lakehouse.

The files are ordinary Delta tables, so that other engines can read them while Tocsin runs.
"""
