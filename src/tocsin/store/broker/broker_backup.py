"""A broker's store as one file that tells whether it is whole: what a backup of a broker is.

The store may be another process's, which goes on working: SQLite copies one committed state of it. The copy holds the
SHA-256 of all that is in its tables, so that whatever changed in it since is found when it is brought back.

What is brought back is another store: it signs with new keys, because numbers of subscribers that were given since the
backup are given again, and it takes the broker's name over (`NOT_RESTORED`).
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

from tocsin.patience import to_the_end
from tocsin.store.broker.files import PATTERN, broker_of
from tocsin.store.broker.rows import NOT_RESTORED
from tocsin.store.broker.sqlite.store import SqliteBrokerStore
from tocsin.store.sqlite.errors import explained
from tocsin.store.sqlite.file import sync
from tocsin.store.sqlite.ownership import Ownership
from tocsin.store.sqlite.upgrades import pending
from tocsin.wire.errors import ConflictError, InputError, NotFoundError, StoreError

CHECKSUM: Final = "saved-sha256"
NAME: Final = "saved-name"
"""Whose it is: a broker does not keep its own name."""


async def save(source: Path, target: Path) -> None:
    """A new file of the store in `source`, complete or not at all, which only its owner may read."""
    await to_the_end(asyncio.to_thread(_save, source, target))


async def save_all(data: Path, into: Path) -> None:
    """Those of all brokers whose files lie in the data folder, under the same names."""

    def work() -> None:
        for path in sorted(data.glob(PATTERN)):
            if path.stat().st_size:  # A broker that is just being started has nothing to save.
                _save(path, into / path.name)

    await to_the_end(asyncio.to_thread(work))


async def bring_back(source: Path, target: Path) -> None:
    """Makes a broker's store of what `save` wrote, after checking all of it. Refused where a broker has the store
    (UnavailableError), or there is one (ConflictError)."""
    await to_the_end(asyncio.to_thread(_bring_back, source, target))


async def settle(path: Path) -> None:
    """Checks a saved file (StoreError) and makes it a store again, in its place."""
    await to_the_end(asyncio.to_thread(_settle, path))


def name_in(saved: Path) -> str | None:
    """The full name of the broker that was saved there; None where that is not said, or it is no such file."""
    try:
        with closing(sqlite3.connect(f"{saved.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as copy:
            said = copy.execute("SELECT value FROM facts WHERE name = ?", (NAME,)).fetchone()
    except sqlite3.DatabaseError:
        return None
    return None if said is None else str(said[0])


def _save(source: Path, target: Path) -> None:
    if not source.is_file():
        raise NotFoundError(f"there is no broker's file {source}", hint="choose the broker with --name and --data")
    part = target.with_name(f"{target.name}.saving")
    with explained(target):
        if os.path.lexists(target):
            raise ConflictError(f"{target} exists already", hint="choose a new file for the backup")
        if not target.parent.is_dir():
            raise InputError(f"there is no folder {target.parent}", hint="make it first, or choose another")
        part.unlink(missing_ok=True)
        try:
            SqliteBrokerStore(source).copy_to(part)
            with closing(sqlite3.connect(part, isolation_level=None)) as copy:
                _check_kind(copy, source)
                copy.execute("DELETE FROM facts WHERE name IN (?, ?)", (CHECKSUM, NAME))
                copy.execute("INSERT INTO facts VALUES (?, ?)", (NAME, broker_of(source.name)))
                copy.execute("INSERT INTO facts VALUES (?, ?)", (CHECKSUM, _checksum(copy)))
            sync(part)
            # Read back from what was written.
            with closing(_reader(part)) as copy:
                _check(copy, part)
            part.rename(target)
            sync(target.parent)
        finally:
            part.unlink(missing_ok=True)


def _bring_back(source: Path, target: Path) -> None:
    if not source.is_file():
        raise NotFoundError(f"there is no backup {source}")
    ownership = Ownership(target)
    ownership.take()
    part = target.with_name(f"{target.name}.restoring")
    try:
        with explained(target):
            if os.path.lexists(target):
                raise ConflictError(
                    f"{target} exists already", hint="move it away, or choose another folder with --data"
                )
            try:
                part.unlink(missing_ok=True)
                new = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(new, "wb") as copy, source.open("rb") as saved:
                    shutil.copyfileobj(saved, copy)
                _settle(part, source)
                part.rename(target)
                sync(target.parent)
            finally:
                part.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{error.filename or source} cannot be used: {error.strerror}") from error
    finally:
        ownership.release()


def _settle(path: Path, called: Path | None = None) -> None:
    called = called or path
    with explained(called), closing(sqlite3.connect(path, isolation_level=None)) as copy:
        _check_kind(copy, called)
        _check(copy, called)
        dropped = (CHECKSUM, NAME, *NOT_RESTORED)
        copy.execute(f"DELETE FROM facts WHERE name IN ({', '.join('?' * len(dropped))})", dropped)  # noqa: S608
        # Of tokens that the old key has signed, which count no more.
        copy.execute("DELETE FROM revoked")
    sync(path)


def _check_kind(copy: sqlite3.Connection, called: Path) -> None:
    layout = SqliteBrokerStore.layout
    if copy.execute("PRAGMA application_id").fetchone()[0] != layout.application_id:
        raise StoreError(f"{called} is not a broker's store")
    # Raises for one of a newer program's.
    pending(copy.execute("PRAGMA user_version").fetchone()[0], layout.chain)


def _check(copy: sqlite3.Connection, called: Path) -> None:
    problems = [row[0] for row in copy.execute("PRAGMA integrity_check")]
    if problems != ["ok"]:
        raise StoreError(f"the backup {called} is damaged: {problems[0]}")
    said = copy.execute("SELECT value FROM facts WHERE name = ?", (CHECKSUM,)).fetchone()
    if said is None:
        raise StoreError(f"{called} is no backup: it does not say what its checksum is")
    if said[0] != _checksum(copy):
        raise StoreError(f"the backup {called} is damaged: it is not as it was written")


def _checksum(copy: sqlite3.Connection) -> str:
    """Of everything but itself."""
    digest = hashlib.sha256()
    for what in ("application_id", "user_version"):
        digest.update(f"{copy.execute(f'PRAGMA {what}').fetchone()[0]}\n".encode())
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
