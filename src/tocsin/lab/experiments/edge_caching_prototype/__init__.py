"""The edge-caching paper's prototype, simulated: a city in an emergency, an hour of it."""
