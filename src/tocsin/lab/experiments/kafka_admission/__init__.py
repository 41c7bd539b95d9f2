"""Admission policies over Kafka, simulated: what they keep, what it is worth, and how long a delivery takes.

The policies are those of the live broker; only Kafka, the database and the consumers are simulated, because the claims
are about the policies.
"""
