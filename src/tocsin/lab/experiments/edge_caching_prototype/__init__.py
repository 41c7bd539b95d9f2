"""The edge-caching paper's prototype: an hour of a city in an emergency, simulated and live.

The same scenario runs both ways, so that the simulation can be checked against the live system.
"""
