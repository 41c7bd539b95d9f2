"""The intake log: keeps the records that a feed acknowledged until they are in its datasets."""
