"""The edge-caching paper's prototype: an hour of a city in an emergency, simulated and live."""
