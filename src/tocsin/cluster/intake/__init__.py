"""The way in: what a feed acknowledged is kept here until it is in its datasets."""
