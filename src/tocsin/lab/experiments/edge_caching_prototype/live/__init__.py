"""The prototype on the live system: a cluster with Spark, brokers, and every subscriber of the city as a client.

Real processes show what a simulation leaves out: executions that take time, and clients that are late.
"""
