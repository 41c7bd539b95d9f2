"""Workloads of the papers, made from a seed and independent of any policy: one serves all that are compared."""
