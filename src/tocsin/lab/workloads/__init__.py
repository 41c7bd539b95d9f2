"""Workloads of the papers, made from a seed and independent of the policy: all policies get the same one."""
