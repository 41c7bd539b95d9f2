"""Group commit: all writes that wait when the disk is free again share one transaction and one sync of the disk.

A write that fails is undone alone; if the commit fails, all its writes fail. Markers are the most frequent writes and
are merged before they are written: only the last marker of a row counts.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, Unpack

from tocsin import faults
from tocsin.rules.model.cursors import Cursor, SubscriptionId
from tocsin.store.broker.sqlite.subscriptions import put_markers
from tocsin.store.sqlite.errors import explain_sqlite_errors, translate_sqlite_error
from tocsin.store.sqlite.file import CallParameters, OpeningMode, ReadCall, SqliteFile, transaction
from tocsin.uncancellable import wait_despite_cancel

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _PendingWrite:
    """A write that waits for its transaction, and the future of its answer."""

    work: Callable[[sqlite3.Connection], Any]
    answer: asyncio.Future[Any]


@dataclass(frozen=True, slots=True)
class _FailedWrite:
    """The error of a write that was undone alone."""

    error: BaseException


class GroupCommits(SqliteFile):
    """A store in an SQLite file whose writes share commits. `commits` counts them. At most `commit_writes` writes share
    one, so that no write waits long for the others."""

    def __init__(self, path: Path, *, commit_writes: int = 1_000, **opening: Unpack[OpeningMode]) -> None:
        super().__init__(path, **opening)
        self._commit_writes = commit_writes
        self.commits = 0
        self._waiting: list[_PendingWrite] = []
        self._markers: dict[SubscriptionId, Cursor] = {}
        self._marked: asyncio.Future[None] | None = None
        self._committing: asyncio.Task[None] | None = None

    async def close(self) -> None:
        while self._committing is not None:
            await wait_despite_cancel(self._committing)
        await super().close()

    async def write(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Runs the work in a transaction and returns its answer once it is durable. Works run in the order of
        arrival.
        """
        self.check_open()
        answer: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._waiting.append(_PendingWrite(work, answer))
        self._begin()
        return await wait_despite_cancel(answer)

    async def mark(self, markers: Mapping[SubscriptionId, Cursor]) -> None:
        self.check_open()
        newest = self._markers
        for frontend, cursor in markers.items():
            before = newest.get(frontend)
            if before is None or before < cursor:
                newest[frontend] = cursor
        if self._marked is None:
            self._marked = asyncio.get_running_loop().create_future()
        marked = self._marked
        self._begin()
        try:
            await asyncio.shield(marked)
        except asyncio.CancelledError:
            await wait_despite_cancel(marked)
            raise

    def _begin(self) -> None:
        if self._committing is None:
            self._committing = asyncio.create_task(self._commit_all())

    async def _commit_all(self) -> None:
        try:
            while self._waiting or self._marked is not None:
                async with self.turn:
                    most = self._commit_writes
                    works, self._waiting = self._waiting[:most], self._waiting[most:]
                    markers, self._markers = self._markers, {}
                    marked, self._marked = self._marked, None
                    await self._commit(works, markers, marked)
        finally:
            self._committing = None

    async def _commit(
        self,
        works: Sequence[_PendingWrite],
        markers: Mapping[SubscriptionId, Cursor],
        marked: asyncio.Future[None] | None,
    ) -> None:
        try:
            answers = await self.call(lambda: self._transact([write.work for write in works], markers))
        except BaseException as error:
            for future in (*(write.answer for write in works), *([marked] if marked is not None else [])):
                future.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        self.commits += 1
        for write, answer in zip(works, answers, strict=True):
            if isinstance(answer, _FailedWrite):
                write.answer.set_exception(answer.error)
            else:
                write.answer.set_result(answer)
        if marked is not None:
            marked.set_result(None)

    def _transact(
        self, works: Sequence[Callable[[sqlite3.Connection], Any]], markers: Mapping[SubscriptionId, Cursor]
    ) -> list[Any]:
        writer = self.writer()
        with explain_sqlite_errors(self.path), transaction(writer):
            # Markers come first: a later write then sees what was acknowledged before it.
            put_markers(writer, markers)
            answers = [self._run_alone(writer, work) for work in works]
            faults.reach("broker-store.written")
        faults.reach("broker-store.committed")
        return answers

    def _run_alone(self, writer: sqlite3.Connection, work: Callable[[sqlite3.Connection], Any]) -> Any:
        writer.execute("SAVEPOINT alone")
        try:
            answer = work(writer)
        except Exception as error:
            if not writer.in_transaction:
                raise
            writer.execute("ROLLBACK TO alone")
            writer.execute("RELEASE alone")
            return _FailedWrite(translate_sqlite_error(error, self.path) if isinstance(error, sqlite3.Error) else error)
        writer.execute("RELEASE alone")
        return answer


class GroupedWrite(ReadCall[CallParameters, _T]):
    """A method of a store, made of a function that writes on a connection, in a commit that it shares with others."""

    def run(self, store: Any, work: Callable[[sqlite3.Connection], _T]) -> Coroutine[Any, Any, _T]:
        write: Coroutine[Any, Any, _T] = store.write(work)
        return write
