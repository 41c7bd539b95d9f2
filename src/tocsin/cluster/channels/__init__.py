"""Channels: parameterized queries that run once for all subscribers, and their results."""
