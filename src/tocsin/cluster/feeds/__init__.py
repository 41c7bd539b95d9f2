"""Feeds: the ways into the cluster. A record is acknowledged when it is in the feed's intake log; a worker lands it in
the datasets from there."""
