"""Backs up and restores a broker's store as one file with a checksum.

The store may belong to another process, which continues to work: SQLite copies one committed state of it. The copy
contains the SHA-256 of all its tables, so that a restore detects any later change.

A restored store is a new store. It signs with new keys, because subscriber numbers that were given out since the
backup will be given out again, and it takes over the broker's name (`NOT_RESTORED`).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from tocsin.durable_files import sync_file, sync_folder
from tocsin.store.broker.files import PATTERN, broker_of
from tocsin.store.broker.rows import NOT_RESTORED
from tocsin.store.broker.sqlite.store import SqliteBrokerStore
from tocsin.store.sqlite.errors import explain_sqlite_errors
from tocsin.store.sqlite.file import pending_upgrades
from tocsin.store.sqlite.ownership import Ownership
from tocsin.uncancellable import wait_despite_cancel
from tocsin.wire.errors import ConflictError, InputError, NotFoundError, StoreError

CHECKSUM: Final = "saved-sha256"
_NAME: Final = "saved-name"
"""The broker's name, which a broker's store does not contain otherwise."""


async def save(source: Path, target: Path) -> None:
    """Saves the store in `source` to a new file, complete or not at all, which only its owner may read."""
    await wait_despite_cancel(asyncio.to_thread(_save, source, target))


async def save_all(data: Path, into: Path) -> None:
    """Saves the stores of all brokers in the data folder, under the same file names."""

    def work() -> None:
        for path in sorted(data.glob(PATTERN)):
            if path.stat().st_size:  # A broker that is just starting has nothing to save.
                _save(path, into / path.name)

    await wait_despite_cancel(asyncio.to_thread(work))


async def restore_broker(source: Path, target: Path) -> None:
    """Restores a broker's store from a file of `save`, after checking all of it. Raises UnavailableError if a broker
    has the store open, and ConflictError if the store exists.
    """
    await wait_despite_cancel(asyncio.to_thread(_bring_back, source, target))


async def settle(path: Path) -> None:
    """Checks a saved file (StoreError) and turns it into a store, in place."""
    await wait_despite_cancel(asyncio.to_thread(_settle, path))


def name_in(saved: Path) -> str | None:
    """The full name of the broker in the saved file; None if the file does not say, or is no such file."""
    try:
        with closing(sqlite3.connect(f"{saved.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as copy:
            row = copy.execute("SELECT value FROM facts WHERE name = ?", (_NAME,)).fetchone()
    except sqlite3.DatabaseError:
        return None
    return None if row is None else str(row[0])


def _save(source: Path, target: Path) -> None:
    if not source.is_file():
        raise NotFoundError(f"there is no broker's file {source}", hint="choose the broker with --name and --data")
    unfinished = target.with_name(f"{target.name}.saving")
    with explain_sqlite_errors(target):
        if os.path.lexists(target):
            raise ConflictError(f"{target} exists already", hint="choose a new file for the backup")
        if not target.parent.is_dir():
            raise InputError(f"there is no folder {target.parent}", hint="make it first, or choose another")
        unfinished.unlink(missing_ok=True)
        try:
            SqliteBrokerStore(source).copy_to(unfinished)
            with closing(sqlite3.connect(unfinished, isolation_level=None)) as copy:
                _check_kind(copy, source)
                copy.execute("DELETE FROM facts WHERE name IN (?, ?)", (CHECKSUM, _NAME))
                copy.execute("INSERT INTO facts VALUES (?, ?)", (_NAME, broker_of(source.name)))
                copy.execute("INSERT INTO facts VALUES (?, ?)", (CHECKSUM, _checksum(copy)))
            sync_file(unfinished)
            # Check what was really written.
            with closing(_reader(unfinished)) as copy:
                _check(copy, unfinished)
            unfinished.rename(target)
            sync_folder(target.parent)
        finally:
            unfinished.unlink(missing_ok=True)


def _bring_back(source: Path, target: Path) -> None:
    if not source.is_file():
        raise NotFoundError(f"there is no backup {source}")
    ownership = Ownership(target)
    ownership.take()
    unfinished = target.with_name(f"{target.name}.restoring")
    try:
        with explain_sqlite_errors(target):
            # SQLite would apply the log of a deleted store to the restored one.
            for obstacle in (target, target.with_name(f"{target.name}-wal")):
                if os.path.lexists(obstacle):
                    raise ConflictError(
                        f"{obstacle} exists already", hint="move it away, or choose another folder with --data"
                    )
            try:
                unfinished.unlink(missing_ok=True)
                descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(descriptor, "wb") as copy, source.open("rb") as saved:
                    shutil.copyfileobj(saved, copy)
                _settle(unfinished, source)
                unfinished.rename(target)
                sync_folder(target.parent)
            finally:
                unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{error.filename or source} cannot be used: {error.strerror}") from error
    finally:
        ownership.release()


def _settle(path: Path, called: Path | None = None) -> None:
    called = called or path
    with explain_sqlite_errors(called), closing(sqlite3.connect(path, isolation_level=None)) as copy:
        _check_kind(copy, called)
        _check(copy, called)
        dropped = (CHECKSUM, _NAME, *NOT_RESTORED)
        copy.execute(f"DELETE FROM facts WHERE name IN ({', '.join('?' * len(dropped))})", dropped)  # noqa: S608
        # The old key signed these tokens, so they are invalid anyway.
        copy.execute("DELETE FROM revoked")
    sync_file(path)


def _check_kind(copy: sqlite3.Connection, called: Path) -> None:
    layout = SqliteBrokerStore.layout
    if copy.execute("PRAGMA application_id").fetchone()[0] != layout.application_id:
        raise StoreError(f"{called} is not a broker's store")
    # Raises StoreError if a newer program wrote the store.
    pending_upgrades(copy.execute("PRAGMA user_version").fetchone()[0], layout.chain)


def _check(copy: sqlite3.Connection, called: Path) -> None:
    problems = [row[0] for row in copy.execute("PRAGMA integrity_check")]
    if problems != ["ok"]:
        raise StoreError(f"the backup {called} is damaged: {problems[0]}")
    checksum_row = copy.execute("SELECT value FROM facts WHERE name = ?", (CHECKSUM,)).fetchone()
    if checksum_row is None:
        raise StoreError(f"{called} is no backup: it does not say what its checksum is")
    if checksum_row[0] != _checksum(copy):
        raise StoreError(f"the backup {called} is damaged: it is not as it was written")


def _checksum(copy: sqlite3.Connection) -> str:
    """The checksum of everything but itself."""
    digest = hashlib.sha256()
    for pragma in ("application_id", "user_version"):
        digest.update(f"{copy.execute(f'PRAGMA {pragma}').fetchone()[0]}\n".encode())
    tables = copy.execute("SELECT name, wr FROM pragma_table_list WHERE schema = 'main' AND type = 'table' ORDER BY 1")
    for name, without_rowid in tables.fetchall():
        digest.update(f"{name}\n".encode())
        order = "" if without_rowid else " ORDER BY rowid"
        for row in copy.execute(f'SELECT * FROM "{name}"{order}'):  # noqa: S608 - a name of the file's own
            if not (name == "facts" and row[0] == CHECKSUM):
                digest.update(f"{row!r}\n".encode())
    return digest.hexdigest()


def _reader(path: Path) -> sqlite3.Connection:
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("PRAGMA query_only = ON")
    return reader
