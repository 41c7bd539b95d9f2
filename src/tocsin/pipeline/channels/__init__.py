"""Channels in Spark: the interests, the new records, and the job that joins them."""
