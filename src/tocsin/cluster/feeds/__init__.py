"""Feeds: the ways in. Records are acknowledged when they are in the feed's log, and land in datasets from there."""
