"""Discrete-event simulation: a virtual clock, simulated links, and a random stream for each component."""
