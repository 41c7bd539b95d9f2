"""Readers of records, one per format; each reads a bounded piece of its input at a time."""
