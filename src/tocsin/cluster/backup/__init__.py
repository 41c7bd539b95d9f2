"""Backup and restore of everything durable: the catalog and every dataset with its history, checked.

Neither a backup nor a restored data folder is ever seen half-done under its name: both are made beside it (`….part`,
`….restoring`, which may be removed when a crash left one) and renamed at the end.
"""
