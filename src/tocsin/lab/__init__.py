"""The lab: runs the live state machines under virtual time, with workloads, experiments and judged claims.

The cores are the ones that run live, so that what an experiment says holds for the product.
"""
