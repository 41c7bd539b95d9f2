"""The base of every store in an SQLite file: WAL, synchronous=FULL, one writer, readers that never wait for it.

The writer's connection has a thread of its own; each reader's connection is used by one thread at a time. A long
commit therefore delays no reader, and a reader sees the last committed state.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Concatenate, Final, Generic, Literal, ParamSpec, TypeAlias, TypedDict, TypeVar, Unpack

from tocsin import faults
from tocsin.durable_files import sync_file, sync_folder
from tocsin.store.sqlite.errors import explain_sqlite_errors
from tocsin.uncancellable import wait_despite_cancel
from tocsin.wire.errors import ConflictError, StoreError, UnavailableError

CallParameters = ParamSpec("CallParameters")
_T = TypeVar("_T")

_BUSY_TIMEOUT_S: Final = 5.0
# The write-ahead log may keep this size after a checkpoint.
_LOG_LIMIT_BYTES: Final = 64 << 20


_Dialect: TypeAlias = Literal["sqlite"]


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The statements, per dialect, that lead from the previous version of a store to this one.

    A version is added at the end of its chain and never changed once released. All steps that a store lacks run in one
    transaction, so an interrupted upgrade leaves the old version unchanged.
    """

    version: int
    effect: str
    statements: Mapping[_Dialect, tuple[str, ...]]


def pending_upgrades(version: int, chain: Sequence[Upgrade]) -> list[Upgrade]:
    """The steps that a store of this version lacks, in order. Raises StoreError if the store is newer than this."""
    latest = chain[-1].version
    if version > latest:
        raise StoreError(
            f"the store has version {version}, and this Tocsin knows versions up to {latest}",
            hint="start a newer Tocsin, or restore a backup made before the upgrade",
        )
    return [step for step in chain if step.version > version]


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """What all files of one kind of store have in common.

    `application_id` is in the file's header, so that another program's SQLite file is never taken for ours, nor one
    kind of store for another. `chain` leads to the tables of the present version. `page_bytes` counts only for a new
    file.
    """

    application_id: int
    chain: Sequence[Upgrade]
    readers: int = 1
    page_bytes: int = 4096
    cache_bytes: int = 2 << 20


class OpeningMode(TypedDict, total=False):
    """Options that may differ from file to file.

    `max_bytes` bounds the file (StorageFullError beyond it). `busy_timeout_s` is how long to wait for another process
    that holds the file before UnavailableError. `chain` replaces the layout's, so that tests can try future versions.
    `now` returns the creation time of a new file.
    """

    max_bytes: int | None
    busy_timeout_s: float
    chain: Sequence[Upgrade]
    now: Callable[[], datetime]


class SqliteFile(ABC):
    """A store in the file `path`, which only the file's owner may read. Subclasses define its content."""

    layout: ClassVar[StoreLayout]

    def __init__(self, path: Path, **opening: Unpack[OpeningMode]) -> None:
        self.path = path
        # The writer's lock.
        self.turn = asyncio.Lock()
        self._chain = opening.get("chain", self.layout.chain)
        self._max_bytes = opening.get("max_bytes")
        self._now = opening.get("now", lambda: datetime.now(UTC))
        self._busy_timeout_s = opening.get("busy_timeout_s", _BUSY_TIMEOUT_S)
        self._thread: ThreadPoolExecutor | None = None
        self._reading: ThreadPoolExecutor | None = None
        self._writer: sqlite3.Connection | None = None
        self._readers: list[sqlite3.Connection] = []
        self._idle: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()
        self._version: int | None = None

    @property
    def schema_version(self) -> int:
        self.check_open()
        assert self._version is not None
        return self._version

    def check_open(self) -> None:
        """Raises UnavailableError unless the store is open."""
        if self._version is None:
            raise self._not_open()

    async def open(self) -> None:
        if self._thread is not None:
            raise RuntimeError(f"the store {self.path} is open already")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._reading = ThreadPoolExecutor(self.layout.readers, thread_name_prefix="store-reader")
        try:
            await self.call(self._open)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        async with self.turn:
            thread, reading, self._thread, self._reading, self._version = self._thread, self._reading, None, None, None
            if thread is None or reading is None:
                return
            try:
                # Active readers finish first.
                await wait_despite_cancel(asyncio.to_thread(reading.shutdown))
            finally:
                try:
                    await wait_despite_cancel(asyncio.get_running_loop().run_in_executor(thread, self._close))
                finally:
                    thread.shutdown(wait=False)

    async def backup_to(self, path: Path) -> None:
        self.check_open()
        # The copy uses its own thread and connection, so that it delays neither reads nor transactions.
        await wait_despite_cancel(asyncio.to_thread(self.copy_to, path))

    async def call(self, work: Callable[[], _T]) -> _T:
        """Runs a function on the writer's thread."""
        return await self._run(self._thread, work)

    async def read(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Runs a function on a reader's thread. It sees one committed state from its first statement to its last."""

        def reading() -> _T:
            try:
                # There are as many connections as threads, so the queue is empty only before the store is open.
                reader = self._idle.get_nowait()
            except queue.Empty:
                raise self._not_open() from None
            try:
                with explain_sqlite_errors(self.path):
                    reader.execute("BEGIN")
                    try:
                        return work(reader)
                    finally:
                        # A failure may have ended the transaction already.
                        if reader.in_transaction:
                            reader.execute("COMMIT")
            finally:
                self._idle.put(reader)

        return await self._run(self._reading, reading)

    def writer(self) -> sqlite3.Connection:
        if self._writer is None:
            raise self._not_open()
        return self._writer

    @abstractmethod
    def first_rows(self, writer: sqlite3.Connection, now: datetime) -> None:
        """Inserts the rows that a store has from its creation on, in the transaction that creates its tables."""

    async def _run(self, executor: Executor | None, work: Callable[[], _T]) -> _T:
        if executor is None:
            raise self._not_open()
        return await wait_despite_cancel(asyncio.get_running_loop().run_in_executor(executor, work))

    def _not_open(self) -> UnavailableError:
        return UnavailableError(f"the store {self.path} is not open")

    def _open(self) -> None:
        with explain_sqlite_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            self._writer = writer = self._connect()
            self._refuse_others(writer)
            writer.execute(f"PRAGMA page_size = {self.layout.page_bytes}")
            writer.execute("PRAGMA journal_mode = WAL")
            writer.execute("PRAGMA synchronous = FULL")
            writer.execute(f"PRAGMA journal_size_limit = {_LOG_LIMIT_BYTES}")
            writer.execute(f"PRAGMA cache_size = -{self.layout.cache_bytes >> 10}")
            if self._max_bytes is not None:
                page_bytes = writer.execute("PRAGMA page_size").fetchone()[0]
                writer.execute(f"PRAGMA max_page_count = {max(1, self._max_bytes // page_bytes)}")
            self._version = self._upgrade(writer)
            for _ in range(self.layout.readers):
                reader = self._connect()
                self._readers.append(reader)
                reader.execute("PRAGMA query_only = ON")
                self._idle.put(reader)

    def _connect(self) -> sqlite3.Connection:
        # isolation_level=None: transactions begin and end only where we say. A reader's connection moves between
        # threads, but one thread at a time uses it.
        return sqlite3.connect(self.path, timeout=self._busy_timeout_s, isolation_level=None, check_same_thread=False)

    def _refuse_others(self, connection: sqlite3.Connection) -> None:
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        if tables and application != self.layout.application_id:
            raise StoreError(f"{self.path} is an SQLite file, but not a store of Tocsin's")

    def _upgrade(self, writer: sqlite3.Connection) -> int:
        if not pending_upgrades(_version(writer), self._chain):
            return _version(writer)
        with transaction(writer):
            # Read again under the lock: another process may have upgraded meanwhile.
            before = version = _version(writer)
            for step in pending_upgrades(before, self._chain):
                for statement in step.statements["sqlite"]:
                    writer.execute(statement)
                version = step.version
            writer.execute(f"PRAGMA user_version = {version}")
            writer.execute(f"PRAGMA application_id = {self.layout.application_id}")
            if before == 0:
                self.first_rows(writer, self._now())
            faults.reach("store.upgrade.before")
        return version

    def _close(self) -> None:
        for connection in (*self._readers, self._writer):
            if connection is not None:
                connection.close()
        self._readers, self._writer, self._idle = [], None, queue.SimpleQueue()

    def copy_to(self, path: Path) -> None:
        """Like `backup_to`, on the caller's thread; also for a store that another process has open."""
        unfinished = path.with_name(path.name + ".part")
        with explain_sqlite_errors(path):
            if path.exists():
                raise ConflictError(f"{path} exists already", hint="choose a new file for the backup")
            unfinished.unlink(missing_ok=True)
            os.close(os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            try:
                with (
                    contextlib.closing(self._connect()) as source,
                    contextlib.closing(sqlite3.connect(unfinished, isolation_level=None)) as copy,
                ):
                    source.backup(copy)
                    # The backup is a single file, without a log beside it.
                    copy.execute("PRAGMA journal_mode = DELETE")
                    problems = [row[0] for row in copy.execute("PRAGMA integrity_check")]
                    if problems != ["ok"]:
                        raise StoreError(f"the store {self.path} is damaged: {problems[0]}")
                sync_file(unfinished)
                unfinished.rename(path)
                sync_folder(path.parent)
            except BaseException:
                unfinished.unlink(missing_ok=True)
                raise


class ReadCall(Generic[CallParameters, _T]):
    """A method of a store, made of a function that reads on a connection: `state = ReadCall(rows.state)`."""

    def __init__(self, work: Callable[Concatenate[sqlite3.Connection, CallParameters], _T]) -> None:
        self._work = work

    def __get__(self, store: Any, owner: type[Any]) -> Callable[CallParameters, Coroutine[Any, Any, _T]]:
        def call(*args: CallParameters.args, **named: CallParameters.kwargs) -> Coroutine[Any, Any, _T]:
            return self.run(store, lambda connection: self._work(connection, *args, **named))

        return call

    def run(self, store: Any, work: Callable[[sqlite3.Connection], _T]) -> Coroutine[Any, Any, _T]:
        read: Coroutine[Any, Any, _T] = store.read(work)
        return read


@contextlib.contextmanager
def transaction(writer: sqlite3.Connection) -> Iterator[None]:
    """Commits what the block does at its end; an exception undoes all of it."""
    writer.execute("BEGIN IMMEDIATE")
    try:
        yield
        writer.execute("COMMIT")
    finally:
        # After some errors (a full disk) SQLite has rolled back by itself.
        if writer.in_transaction:
            writer.execute("ROLLBACK")


def _version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version
