"""Scenarios: who moves, logs in and out, subscribes and publishes, and when. Made from a seed, played live or
simulated."""
