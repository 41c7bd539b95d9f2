"""Reads a store's file without changing anything, also while another process writes to it.

An inspection must not alter what it judges. It therefore does not open a store as its owner does: that would upgrade
the store, and create files beside it.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from tocsin.store.cluster.interface import CatalogRow, Removal
from tocsin.store.cluster.sqlite_store import entries, removals
from tocsin.store.sqlite.file import StoreLayout

_PROBLEMS_LIMIT: Final = 10
_BUSY_S: Final = 10.0


def find_problems(path: Path, layout: StoreLayout) -> list[str]:
    """Lists what is wrong with the store in this file. Raises OSError if the file cannot be read."""
    with path.open("rb"):
        pass  # the OSError says why the file cannot be opened; SQLite's error does not
    try:
        with _open_read_only(path) as connection:
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if application != layout.application_id:
                return ["it is not a store of this kind"]
            if version > layout.chain[-1].version:
                return [f"it has version {version}, newer than this program knows"]
            rows_found = connection.execute(f"PRAGMA integrity_check({_PROBLEMS_LIMIT})").fetchall()
            return [row[0] for row in rows_found if row[0] != "ok"]
    except sqlite3.DatabaseError as error:
        return [str(error)]


def read_catalog(path: Path) -> tuple[list[CatalogRow], list[Removal]]:
    """Returns the entries of a cluster's store, and the objects that may be removed. Raises sqlite3.DatabaseError or
    ValueError if the store is damaged.
    """
    with _open_read_only(path) as connection:
        connection.execute("BEGIN")
        # A store of an older version has no such table. The next start upgrades it, not this function.
        has_removals = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'removals'").fetchone()[0]
        return entries(connection), removals(connection) if has_removals else []


def read_channel_vectors(path: Path) -> dict[int, dict[str, int]]:
    """Returns how far each channel has read, from the channel store.

    Raises sqlite3.DatabaseError or ValueError if the store is damaged.
    """
    with _open_read_only(path) as connection:
        channels = connection.execute("SELECT id, vector FROM channels WHERE NOT dropped")
        vectors = {channel_id: json.loads(vector) for channel_id, vector in channels}
    for channel_id, vector in vectors.items():
        if not isinstance(vector, dict) or not all(isinstance(number, int) for number in vector.values()):
            raise ValueError(f"the channel {channel_id} has none")
    return vectors


@contextmanager
def _open_read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """Opens a connection that sees the last committed state.

    If a killed process left a log, SQLite would create a shared-memory file beside it, which might then belong to the
    wrong user. Such a store is copied first.
    """
    log, shared_memory = _beside(path, "-wal"), _beside(path, "-shm")
    if not log.exists():
        with closing(_connect(path, "mode=ro&immutable=1")) as connection:
            yield connection
    elif shared_memory.exists():
        with closing(_connect(path, "mode=ro")) as connection:
            yield connection
    else:
        with tempfile.TemporaryDirectory(prefix="tocsin-check-") as folder:
            copy = Path(folder) / path.name
            shutil.copyfile(path, copy)
            shutil.copyfile(log, _beside(copy, "-wal"))
            with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
                yield connection


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _connect(path: Path, options: str) -> sqlite3.Connection:
    address = f"{path.absolute().as_uri()}?{options}"
    return sqlite3.connect(address, uri=True, timeout=_BUSY_S, isolation_level=None)
