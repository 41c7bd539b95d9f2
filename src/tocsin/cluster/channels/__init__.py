"""Channels: parameterized queries that run for everybody who subscribed to them, and what they found."""
