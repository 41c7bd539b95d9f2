"""Spark and the files that it reads: datasets, landing of feeds, channels, Python functions.

Calls of the JVM block, so they run in threads: the event loop of a cluster never waits for Spark.
"""
