"""The prototype on the live system: a cluster with Spark, brokers, and every subscriber of the city as a client."""
