"""Readers of records, one per format; each reads a bounded piece of its input at a time.

A hostile or huge body must not need memory in proportion to its size.
"""
