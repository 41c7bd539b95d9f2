"""The prototype on the live system: a cluster with Spark, brokers, and everybody of the city as a client."""
