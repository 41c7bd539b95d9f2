"""Marks a shared storage with the cluster that uses it, so that no other cluster sets its datasets aside.

The mark is a random number. It is a file in the data folder, which no backup contains, and an object at the storage.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

from tocsin.durable_files import sync_folder, write_synced
from tocsin.storage.interface import StorageFolder
from tocsin.wire.errors import ConflictError

OWNER: Final = "storage-owner"


def claim_storage(storage: StorageFolder, data: Path) -> None:
    """Marks the storage as this data folder's. Raises ConflictError if it is another's."""
    refuse_other_owner(storage, data)
    mark = _read_mark(data)
    if mark is None:
        mark = secrets.token_hex(16).encode()
        write_synced(data / OWNER, mark)
        sync_folder(data)
    storage.put(OWNER, mark)


def refuse_other_owner(storage: StorageFolder, data: Path) -> None:
    """Raises ConflictError if the storage is marked as another cluster's."""
    try:
        owner = storage.read(OWNER)
    except FileNotFoundError:
        return
    if owner != _read_mark(data):
        raise ConflictError(
            f"the storage {storage.url} belongs to another cluster",
            hint="set another cluster.storage.url: each cluster needs its own. If that cluster is gone for ever and "
            f"this one takes its place, remove {storage.locate(OWNER)}",
        )


def _read_mark(data: Path) -> bytes | None:
    try:
        return (data / OWNER).read_bytes()
    except FileNotFoundError:
        return None
