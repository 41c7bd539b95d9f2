"""Channels in Spark: the interests, the records that are new, and the one job that brings them together."""
