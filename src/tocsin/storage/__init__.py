"""Files at a URL: the only place that opens, lists, syncs or removes a file of a dataset."""
