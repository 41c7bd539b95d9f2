"""Many writes, one commit: all who wait when the disk is free again share one transaction, and one sync of the disk.

Each write is undone alone when it fails; when the commit fails, all of them have failed. Markers, of which there are
most, are put together before they are written: of several for one row only the last one counts.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, Unpack

from tocsin import faults
from tocsin.patience import to_the_end
from tocsin.rules.model.cursors import Cursor
from tocsin.store.broker.sqlite.subscriptions import put_markers
from tocsin.store.sqlite.errors import explained, meaning
from tocsin.store.sqlite.file import OpeningMode, SqliteFile, transaction

Answer = TypeVar("Answer")

# What one transaction takes, so that nobody waits long for the others.
TOGETHER: Final = 1_000


@dataclass(frozen=True, slots=True)
class PendingWrite:
    """A write that waits for its turn, and whoever waits for its answer."""

    work: Callable[[sqlite3.Connection], Any]
    answer: asyncio.Future[Any]


@dataclass(frozen=True, slots=True)
class FailedWrite:
    """What a write raised, when it was undone alone."""

    error: BaseException


class GroupCommits(SqliteFile):
    """A store in an SQLite file, whose writes share commits. `commits` counts them."""

    def __init__(self, path: Path, **opening: Unpack[OpeningMode]) -> None:
        super().__init__(path, **opening)
        self.commits = 0
        self._waiting: list[PendingWrite] = []
        self._markers: dict[int, Cursor] = {}
        self._marked: asyncio.Future[None] | None = None
        self._committing: asyncio.Task[None] | None = None

    async def close(self) -> None:
        while self._committing is not None:
            await to_the_end(self._committing)
        await super().close()

    async def write(self, work: Callable[[sqlite3.Connection], Answer]) -> Answer:
        """What the work answers, once it is durable. Works run in the order they came."""
        self.check_open()
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append(PendingWrite(work, answer))
        self._begin()
        return await to_the_end(answer)

    async def mark(self, markers: Mapping[int, Cursor]) -> None:
        self.check_open()
        known = self._markers
        for frontend, cursor in markers.items():
            before = known.get(frontend)
            if before is None or before < cursor:
                known[frontend] = cursor
        if self._marked is None:
            self._marked = asyncio.get_running_loop().create_future()
        marked = self._marked
        self._begin()
        try:
            await asyncio.shield(marked)
        except asyncio.CancelledError:
            await to_the_end(marked)
            raise

    def _begin(self) -> None:
        if self._committing is None:
            self._committing = asyncio.create_task(self._commit_all())

    async def _commit_all(self) -> None:
        try:
            while self._waiting or self._marked is not None:
                async with self.turn:
                    works, self._waiting = self._waiting[:TOGETHER], self._waiting[TOGETHER:]
                    markers, self._markers = self._markers, {}
                    marked, self._marked = self._marked, None
                    await self._commit(works, markers, marked)
        finally:
            self._committing = None

    async def _commit(
        self, works: Sequence[PendingWrite], markers: Mapping[int, Cursor], marked: asyncio.Future[None] | None
    ) -> None:
        try:
            answers = await self.call(lambda: self._transact([one.work for one in works], markers))
        except BaseException as problem:
            for future in (*(one.answer for one in works), *([marked] if marked is not None else [])):
                future.set_exception(problem)
            if not isinstance(problem, Exception):
                raise
            return
        self.commits += 1
        for one, answer in zip(works, answers, strict=True):
            if isinstance(answer, FailedWrite):
                one.answer.set_exception(answer.error)
            else:
                one.answer.set_result(answer)
        if marked is not None:
            marked.set_result(None)

    def _transact(
        self, works: Sequence[Callable[[sqlite3.Connection], Any]], markers: Mapping[int, Cursor]
    ) -> list[Any]:
        writer = self.writer()
        with explained(self.path), transaction(writer):
            # Markers first: whoever has acknowledged before it asks for something finds it acknowledged.
            put_markers(writer, markers)
            answers = [self._alone(writer, work) for work in works]
            faults.reach("broker-store.written")
        faults.reach("broker-store.committed")
        return answers

    def _alone(self, writer: sqlite3.Connection, work: Callable[[sqlite3.Connection], Any]) -> Any:
        writer.execute("SAVEPOINT alone")
        try:
            answer = work(writer)
        except Exception as problem:
            if not writer.in_transaction:
                raise
            writer.execute("ROLLBACK TO alone")
            writer.execute("RELEASE alone")
            return FailedWrite(meaning(problem, self.path) if isinstance(problem, sqlite3.Error) else problem)
        writer.execute("RELEASE alone")
        return answer
