"""Lands the records of feeds in their datasets.

A crash may repeat a landing, so each commit carries the position of the log up to which it reaches.
"""
