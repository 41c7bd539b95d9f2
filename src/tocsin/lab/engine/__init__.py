"""Discrete-event simulation: a virtual clock, simulated links, and a random stream for each component.

Simulations in which one message can overtake another run on this engine. The edge-caching experiment does not use it:
the round trips of its `FastBrokerSim` are constant, so messages stay in order, and two queues serve its millions of
events faster than a heap.
"""
