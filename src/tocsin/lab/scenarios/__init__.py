"""Scenarios: who moves, logs in, subscribes and publishes, and when. Made from a seed, played live or simulated."""
