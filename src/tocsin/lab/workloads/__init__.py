"""Workloads of the papers, made from a seed and independent of the policy: all policies get the same one.

A difference between two policies then comes from the policies and not from chance.
"""
