"""The intake log: keeps the records that a feed acknowledged until they are in its datasets.

A record is acknowledged when it is durable here, so that publishers never wait for Spark.
"""
