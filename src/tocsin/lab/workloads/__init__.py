"""Workloads of the papers, generated from a seed and independent of the policy: all compared policies get the same
one."""
