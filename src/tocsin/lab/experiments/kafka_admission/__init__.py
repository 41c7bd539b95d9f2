"""Admission policies over Kafka, simulated: what they keep, what it is worth, and what a delivery then takes."""
