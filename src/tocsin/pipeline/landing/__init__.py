"""Lands the records of feeds in their datasets."""
