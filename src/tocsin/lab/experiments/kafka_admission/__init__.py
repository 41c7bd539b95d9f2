"""Admission policies over Kafka, simulated: what they keep, what it is worth, and how long a delivery takes."""
