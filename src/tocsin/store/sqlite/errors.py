"""Translates SQLite's failures into Tocsin's errors.

Callers must not depend on the kind of store that they use.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tocsin.durable_files import NO_ROOM
from tocsin.wire.errors import StorageFullError, StoreError, TocsinError, UnavailableError

_PROBE: Final = b"\0" * 4096
_PROBE_BYTES: Final = 1 << 20


@contextlib.contextmanager
def explain_sqlite_errors(path: Path) -> Iterator[None]:
    """Turns errors of SQLite and of the file system about the file `path` into errors that say what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate_sqlite_error(error, path) from error
    except OSError as error:
        if error.errno in NO_ROOM:
            raise _full(path) from error
        raise StoreError(f"the store {path} cannot be used: {error.strerror or error}") from error


def translate_sqlite_error(problem: sqlite3.Error, path: Path) -> TocsinError:
    extended = getattr(problem, "sqlite_errorcode", None) or 0
    match extended & 0xFF:
        case sqlite3.SQLITE_FULL:
            return _full(path)
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return UnavailableError(
                f"the store {path} is locked by another process", hint="stop the other one, or wait until it is done"
            )
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return StoreError(
                f"the store {path} is damaged, or is not a store: {problem}",
                hint="restore a backup; the file was left as it is",
            )
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_IOERR:
            # SQLite reports only ENOSPC as "full"; a quota, a size limit, and ENOSPC during opening look like this.
            if _no_room_beside(path):
                return _full(path)
            return StoreError(
                f"the store {path} cannot be read or written: {problem}", hint="look at its owner and its disk"
            )
        case _:
            return StoreError(f"the store {path} failed: {problem}")


def _full(path: Path) -> StorageFullError:
    return StorageFullError(
        f"there is no room left for the store {path}", hint="make room on the disk; nothing was lost"
    )


def _no_room_beside(path: Path) -> bool:
    """Whether another file in the same folder cannot grow either: only a probe tells why a write was refused."""
    try:
        with tempfile.TemporaryFile(dir=path.parent, buffering=0) as probe:
            for _ in range(_PROBE_BYTES // len(_PROBE)):
                probe.write(_PROBE)
            os.fsync(probe.fileno())
    except OSError as error:
        return error.errno in NO_ROOM
    return False
