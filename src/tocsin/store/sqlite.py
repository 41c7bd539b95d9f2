"""The store in one SQLite file: nothing to install, and durable (WAL, synchronous=FULL).

Two connections live on one thread of their own: `writer` for the one running transaction, `reader` for everybody else,
who thus sees the last committed state and never waits for a lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from tocsin import faults
from tocsin.store import sqlite_rows as rows
from tocsin.store.sqlite_errors import explained
from tocsin.store.store import (
    CREATED_AT,
    EPOCH,
    NAME_LIMIT,
    Entry,
    TokenRow,
    check_key,
    check_text,
    encode_json,
    next_epoch,
)
from tocsin.store.upgrades import UPGRADES, Upgrade, pending
from tocsin.wire.errors import ConflictError, InputError, StoreError, UnavailableError

Result = TypeVar("Result")

# In the file's header, so that another program's SQLite file is never taken for a store: "TCSN".
APPLICATION_ID: Final = 0x5443534E
BUSY_TIMEOUT_S: Final = 5.0


class SqliteStore:
    """A ClusterStore in the file `path`, which only its owner may read, since it holds what tokens are checked against.

    `max_bytes` bounds the file (StorageFullError beyond it); `busy_timeout_s` is how long another process may hold the
    store before UnavailableError.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int | None = None,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        chain: Sequence[Upgrade] = UPGRADES,
    ) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._busy_timeout_s = busy_timeout_s
        self._chain = chain
        self._turn = asyncio.Lock()
        self._owner: asyncio.Task[Any] | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._version: int | None = None

    @property
    def schema_version(self) -> int:
        if self._version is None:
            raise UnavailableError(f"the store {self.path} is not open")
        return self._version

    async def open(self) -> None:
        if self._thread is not None:
            raise RuntimeError(f"the store {self.path} is open already")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        try:
            await self.call(self._open)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        async with self._turn:
            thread, self._thread, self._version = self._thread, None, None
            if thread is not None:
                try:
                    await _to_the_end(asyncio.get_running_loop().run_in_executor(thread, self._close))
                finally:
                    thread.shutdown(wait=False)

    async def entries(self) -> list[Entry]:
        return await self._read(rows.entries)

    async def entry(self, kind: str, dataverse: str, name: str) -> Entry | None:
        return await self._read(lambda reader: rows.entry(reader, kind, dataverse, name))

    async def tokens(self) -> list[TokenRow]:
        return await self._read(rows.tokens)

    async def facts(self) -> dict[str, Any]:
        return await self._read(rows.facts)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[SqliteTransaction]:
        task = asyncio.current_task()
        if task is not None and task is self._owner:
            raise RuntimeError("this task has a transaction already, and the second would wait for it for ever")
        async with self._turn:
            transaction = SqliteTransaction(self)
            self._owner = task
            try:
                await self.call(transaction.begin)
                yield transaction
                await self.call(transaction.commit)
            finally:
                self._owner = None
                await self.call(transaction.end)

    async def backup_to(self, path: Path) -> None:
        self.schema_version  # noqa: B018 - raises when the store is not open
        # On a thread and a connection of its own: a long copy holds up neither reads nor transactions.
        await _to_the_end(asyncio.ensure_future(asyncio.to_thread(self._back_up, path)))

    async def call(self, work: Callable[[], Result]) -> Result:
        """Run something on the store's thread."""
        if self._thread is None:
            raise UnavailableError(f"the store {self.path} is not open")
        return await _to_the_end(asyncio.get_running_loop().run_in_executor(self._thread, work))

    def writer(self) -> sqlite3.Connection:
        if self._writer is None:
            raise UnavailableError(f"the store {self.path} is not open")
        return self._writer

    async def _read(self, read: Callable[[sqlite3.Connection], Result]) -> Result:
        def work() -> Result:
            if self._reader is None:
                raise UnavailableError(f"the store {self.path} is not open")
            with explained(self.path):
                return read(self._reader)

        return await self.call(work)

    def _open(self) -> None:
        with explained(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            self._writer = writer = self._connect()
            _refuse_others(writer, self.path)
            writer.execute("PRAGMA journal_mode = WAL")
            writer.execute("PRAGMA synchronous = FULL")
            if self._max_bytes is not None:
                page_bytes = writer.execute("PRAGMA page_size").fetchone()[0]
                writer.execute(f"PRAGMA max_page_count = {max(1, self._max_bytes // page_bytes)}")
            self._version = self._upgrade(writer)
            self._reader = self._connect()
            self._reader.execute("PRAGMA query_only = ON")

    def _connect(self) -> sqlite3.Connection:
        # isolation_level=None: transactions begin and end where we say, and nowhere else.
        return sqlite3.connect(self.path, timeout=self._busy_timeout_s, isolation_level=None)

    def _upgrade(self, writer: sqlite3.Connection) -> int:
        if not pending(_version(writer), self._chain):
            return _version(writer)
        writer.execute("BEGIN IMMEDIATE")
        try:
            # Read again under the lock: another process may have been quicker.
            before = version = _version(writer)
            for step in pending(before, self._chain):
                for statement in step.statements["sqlite"]:
                    writer.execute(statement)
                version = step.version
            writer.execute(f"PRAGMA user_version = {version}")
            writer.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            if before == 0:
                now = datetime.now(UTC)
                rows.set_fact(writer, EPOCH, encode_json(next_epoch(None, now)))
                rows.set_fact(writer, CREATED_AT, encode_json(now.isoformat()))
            faults.reach("store.upgrade.before")
            writer.execute("COMMIT")
        except BaseException:
            if writer.in_transaction:
                writer.execute("ROLLBACK")
            raise
        return version

    def _close(self) -> None:
        for connection in (self._reader, self._writer):
            if connection is not None:
                connection.close()
        self._reader = self._writer = None

    def _back_up(self, path: Path) -> None:
        part = path.with_name(path.name + ".part")
        with explained(path):
            if path.exists():
                raise ConflictError(f"{path} exists already", hint="choose a new file for the backup")
            part.unlink(missing_ok=True)
            os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            try:
                with (
                    contextlib.closing(self._connect()) as source,
                    contextlib.closing(sqlite3.connect(part, isolation_level=None)) as copy,
                ):
                    source.backup(copy)
                    # One file that can be read anywhere, without a log beside it.
                    copy.execute("PRAGMA journal_mode = DELETE")
                    problems = [row[0] for row in copy.execute("PRAGMA integrity_check")]
                    if problems != ["ok"]:
                        raise StoreError(f"the store {self.path} is damaged: {problems[0]}")
                _sync(part)
                part.rename(path)
                _sync(path.parent)
            except BaseException:
                part.unlink(missing_ok=True)
                raise


class SqliteTransaction:
    """A Transaction. `begin`, `commit` and `end` are the store's to call, on its thread."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._failure: BaseException | None = None
        self._over = False
        self._committed = False

    @property
    def committed(self) -> bool:
        return self._committed

    async def entries(self) -> list[Entry]:
        return await self._do(rows.entries)

    async def entry(self, kind: str, dataverse: str, name: str) -> Entry | None:
        return await self._do(lambda writer: rows.entry(writer, kind, dataverse, name))

    async def tokens(self) -> list[TokenRow]:
        return await self._do(rows.tokens)

    async def facts(self) -> dict[str, Any]:
        return await self._do(rows.facts)

    async def add_entry(self, kind: str, dataverse: str, name: str, body: dict[str, Any]) -> Entry:
        check_key(kind, dataverse, name)
        text = encode_json(body)
        return await self._do(lambda writer: rows.add_entry(writer, kind, dataverse, name, text))

    async def replace_entry(self, kind: str, dataverse: str, name: str, body: dict[str, Any]) -> Entry:
        check_key(kind, dataverse, name)
        text = encode_json(body)
        return await self._do(lambda writer: rows.replace_entry(writer, kind, dataverse, name, text))

    async def remove_entry(self, kind: str, dataverse: str, name: str) -> bool:
        check_key(kind, dataverse, name)
        return await self._do(lambda writer: rows.remove_entry(writer, kind, dataverse, name))

    async def set_fact(self, name: str, value: Any) -> None:
        check_text("fact", name, NAME_LIMIT)
        text = encode_json(value)
        await self._do(lambda writer: rows.set_fact(writer, name, text))

    async def add_token(self, name: str, digest: str, role: str, created_at: datetime) -> TokenRow:
        for what, text in (("token's name", name), ("digest", digest), ("role", role)):
            check_text(what, text, NAME_LIMIT)
        return await self._do(lambda writer: rows.add_token(writer, name, digest, role, created_at))

    async def revoke_token(self, token_id: int, revoked_at: datetime) -> bool:
        return await self._do(lambda writer: rows.revoke_token(writer, token_id, revoked_at))

    def begin(self) -> None:
        with explained(self._store.path):
            self._store.writer().execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        if self._failure is not None:
            raise self._failure
        with explained(self._store.path):
            faults.reach("store.commit.before")
            self._store.writer().execute("COMMIT")
            self._committed = True
            faults.reach("store.commit.after")

    def end(self) -> None:
        self._over = True
        # After some errors (a full disk) SQLite has rolled back by itself.
        if self._store.writer().in_transaction:
            with explained(self._store.path):
                self._store.writer().execute("ROLLBACK")

    async def _do(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        def guarded() -> Result:
            if self._over:
                raise RuntimeError("this transaction is over")
            if self._failure is not None:
                # SQLite may have rolled back already: a further write would then commit on its own.
                raise self._failure
            try:
                with explained(self._store.path):
                    return work(self._store.writer())
            except InputError:
                raise
            except BaseException as failure:
                self._failure = failure
                raise

        return await self._store.call(guarded)


async def _to_the_end(future: asyncio.Future[Result]) -> Result:
    """Wait for what cannot be stopped half-way, also when cancelled: whoever cancels never finds it still running."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError as stop:
            cancelled = stop
    if cancelled is not None:
        future.exception()
        raise cancelled
    return future.result()


def _version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def _refuse_others(connection: sqlite3.Connection, path: Path) -> None:
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if tables and application != APPLICATION_ID:
        raise StoreError(f"{path} is an SQLite file, but not a store of Tocsin's")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
