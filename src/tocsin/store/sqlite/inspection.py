"""A store's file read without changing anything, also while another process writes to it."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from tocsin.store.cluster import sqlite_rows as rows
from tocsin.store.cluster.interface import CatalogRow, Removal
from tocsin.store.sqlite.file import StoreLayout
from tocsin.store.sqlite.upgrades import latest

PROBLEMS_LIMIT: Final = 10
_BUSY_S: Final = 10.0


def find_problems(path: Path, layout: StoreLayout) -> list[str]:
    """What is wrong with the store in this file. OSError where it cannot be read."""
    with path.open("rb"):
        pass  # says why it cannot be opened, which SQLite does not
    try:
        with open_read_only(path) as connection:
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if application != layout.application_id:
                return ["it is not a store of this kind"]
            if version > latest(layout.chain):
                return [f"it has version {version}, newer than this program knows"]
            found = connection.execute(f"PRAGMA integrity_check({PROBLEMS_LIMIT})").fetchall()
            return [row[0] for row in found if row[0] != "ok"]
    except sqlite3.DatabaseError as error:
        return [str(error)]


def read_catalog(path: Path) -> tuple[list[CatalogRow], list[Removal]]:
    """The entries of a cluster's store, and what may be removed. sqlite3.DatabaseError or ValueError where it is
    damaged."""
    with open_read_only(path) as connection:
        connection.execute("BEGIN")
        # One of an older version has none, and is upgraded by whoever starts on it, not here.
        recorded = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'removals'").fetchone()[0]
        return rows.entries(connection), rows.removals(connection) if recorded else []


def read_channel_vectors(path: Path) -> dict[int, dict[str, int]]:
    """How far the channels have read that the channels' store has rows of. sqlite3.DatabaseError or ValueError where it
    is damaged."""
    with open_read_only(path) as connection:
        found = connection.execute("SELECT id, vector FROM channels WHERE NOT dropped")
        vectors = {channel_id: json.loads(vector) for channel_id, vector in found}
    for channel_id, vector in vectors.items():
        if not isinstance(vector, dict) or not all(isinstance(number, int) for number in vector.values()):
            raise ValueError(f"the channel {channel_id} has none")
    return vectors


@contextmanager
def open_read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that sees the last committed state.

    Beside the log of somebody who was killed SQLite would make a file to share it with others, which might then belong
    to the wrong user: such a store is copied first.
    """
    log, shared = _beside(path, "-wal"), _beside(path, "-shm")
    if not log.exists():
        with closing(_connected(path, "mode=ro&immutable=1")) as connection:
            yield connection
    elif shared.exists():
        with closing(_connected(path, "mode=ro")) as connection:
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


def _connected(path: Path, options: str) -> sqlite3.Connection:
    address = f"{path.absolute().as_uri()}?{options}"
    return sqlite3.connect(address, uri=True, timeout=_BUSY_S, isolation_level=None)
