"""Backup and restore of everything durable: the catalog and every dataset with its history, with checksums.

A backup or a restored data folder never appears under its name half-done. Each is made under another name (`….part`,
`….restoring`; an operator may delete one that a crash left) and renamed at the end.
"""
