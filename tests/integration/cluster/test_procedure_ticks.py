"""Ticks of procedures across restarts and crashes: what a tick changed, it changes once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar, cast
from unittest import mock

import pytest

from tests.support.sparkless_process import Parts, Sparkless, opened
from tests.support.waiting import WITHIN_S
from tocsin.cluster.catalog.entries import ProcedureEntry, ProcedureSchedule
from tocsin.cluster.catalog.entry_json import entry_from_json, entry_to_json
from tocsin.cluster.engine.engine_session import engine_lost
from tocsin.cluster.statements.dml import DmlHandler
from tocsin.cluster.statements.procedures import SCHEDULES_LIMIT, Procedures
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.pipeline.python.functions import PythonFunctions
from tocsin.store.cluster.interface import CatalogRow
from tocsin.wire.errors import LimitError, NotFoundError, StorageFullError

T = TypeVar("T")

SETUP = """
CREATE DATAVERSE v; USE v; CREATE TYPE T AS { id: int }; CREATE DATASET D(T) PRIMARY KEY id;
INSERT INTO D [{"id": 1}, {"id": 2}];
"""


class Days:
    """A clock that stands still at so many days after the procedure was started. `asleep` is set when all its
    schedules sleep."""

    def __init__(self, parts: Parts, days: float) -> None:
        (entry,) = parts.catalog.catalog.procedures
        self.at = entry.schedules[0].anchor + timedelta(days=days)
        self.asleep = asyncio.Event()
        self.awake = len(entry.schedules)

    def now(self) -> datetime:
        return self.at

    async def sleep(self, _seconds: float) -> None:
        self.awake -= 1
        if self.awake == 0:
            self.asleep.set()
        await asyncio.Event().wait()


@asynccontextmanager
async def going(parts: Parts, days: float, *, ran_until_days: float | None = None) -> AsyncIterator[Procedures]:
    """The procedures of a cluster this many days later, once they have done all that is due."""
    clock = Days(parts, days)
    engine = Sparkless(
        cast("Any", None), lambda _spark: cast("PythonFunctions", None), parts.settings.data, threads=2, lost_limit=4
    )
    changes = DmlHandler(parts.tables, engine)
    ran_until = None if ran_until_days is None else clock.at + timedelta(days=ran_until_days - days)
    procedures = Procedures(parts.catalog, parts.tables, engine, changes, clock.now, clock.sleep, ran_until=ran_until)
    await procedures.start()
    try:
        async with asyncio.timeout(WITHIN_S):
            await clock.asleep.wait()
        yield procedures
    finally:
        await procedures.close()
        engine.close()


@pytest.mark.parametrize("body", ["UPSERT INTO D {'id': 1}", "INSERT INTO D {'id': 3}", "DELETE FROM D"])
async def test_a_tick_that_changed_something_is_not_run_again_after_a_restart(data_dir: Path, body: str) -> None:
    async with opened(data_dir) as parts:
        await parts.run(f"{SETUP} CREATE PROCEDURE p() {{ {body} }} PERIOD 'P1D'; EXECUTE p()")
        async with going(parts, 0.9):
            assert parts.table("D").number == 1, "it is not due yet"
        async with going(parts, 3.5):
            assert parts.table("D").number == 2, "three ticks are made up for by one run"
    async with opened(data_dir) as parts:
        if body.startswith("DELETE"):
            await parts.run("USE v; INSERT INTO D {'id': 9}")
        before = parts.table("D").number
        async with going(parts, 3.9):
            assert parts.table("D").number == before
        if not body.startswith("INSERT"):
            async with going(parts, 4.0):
                assert parts.table("D").number == before + 1


async def test_a_tick_that_failed_runs_again_after_a_restart(data_dir: Path) -> None:
    async with opened(data_dir) as parts:
        await parts.run(f"{SETUP} CREATE PROCEDURE p() {{ UPSERT INTO D {{'id': 1}} }} PERIOD 'P1D'; EXECUTE p()")
        with mock.patch.object(DatasetTable, "upsert", side_effect=StorageFullError("full")):
            async with going(parts, 1):
                assert parts.table("D").number == 1
    async with opened(data_dir) as parts, going(parts, 1):
        assert parts.table("D").number == 2


async def test_a_tick_that_changes_nothing_is_no_commit(data_dir: Path) -> None:
    async with opened(data_dir) as parts:
        await parts.run(f"{SETUP} DELETE FROM D; CREATE PROCEDURE p() {{ DELETE FROM D }} PERIOD 'P1D'; EXECUTE p()")
        before = parts.table("D").number
        async with going(parts, 2):
            assert parts.table("D").number == before


@pytest.mark.parametrize(("ran_until_days", "missed"), [(2.5, 7), (8.5, 1), (9.5, 0), (10.2, 0), (20, 0)])
async def test_ticks_that_changed_nothing_are_not_missed_after_a_restart(
    data_dir: Path, ran_until_days: float, missed: int
) -> None:
    async with opened(data_dir) as parts:
        await parts.run(f"{SETUP} DELETE FROM D; CREATE PROCEDURE p() {{ DELETE FROM D }} PERIOD 'P1D'; EXECUTE p()")
        async with going(parts, 2):
            pass
    async with opened(data_dir) as parts, going(parts, 10.5, ran_until_days=ran_until_days) as procedures:
        assert [run.missed for run in procedures.runs()] == [missed]


async def test_a_tick_that_loses_its_engine_runs_again_with_the_next_one(data_dir: Path) -> None:
    async with opened(data_dir) as parts:
        await parts.run(f"{SETUP} CREATE PROCEDURE p() {{ UPSERT INTO D {{'id': 1}} }} PERIOD 'P1D'; EXECUTE p()")
        upsert, tries = DatasetTable.upsert, 0

        def lose_engine(table: DatasetTable, *rows: object, **options: object) -> object:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise engine_lost()
            return upsert(table, *rows, **options)  # type: ignore[arg-type]

        with mock.patch.object(DatasetTable, "upsert", lose_engine):
            async with going(parts, 1):
                assert (tries, parts.table("D").number) == (2, 2)


class Slow(Sparkless):
    """Its first work goes on until it is told to stop."""

    is_stopped = False

    async def work(self, work: Callable[[], T], what: str = "", **rest: object) -> T:
        if what and not self.is_stopped:
            try:
                await asyncio.Event().wait()
            finally:
                self.is_stopped = True
        return await super().work(work, what)


async def test_a_run_that_takes_too_long_is_stopped_and_says_so(data_dir: Path) -> None:
    async with opened(data_dir) as parts:
        await parts.run(f"{SETUP} CREATE PROCEDURE p() {{ UPSERT INTO D {{'id': 1}} }} PERIOD 'P1D'; EXECUTE p()")
        clock = Days(parts, 1)
        engine = Slow(
            cast("Any", None),
            lambda _spark: cast("PythonFunctions", None),
            parts.settings.data,
            threads=2,
            lost_limit=4,
        )
        changes = DmlHandler(parts.tables, engine)
        procedures = Procedures(
            parts.catalog, parts.tables, engine, changes, clock.now, clock.sleep, deadline_s=0.05
        )  # fmt: skip
        await procedures.start()
        async with asyncio.timeout(WITHIN_S):
            await clock.asleep.wait()
        (run,) = procedures.runs()
        assert "not done within 0.05 s" in (run.reason or "")
        assert engine.is_stopped
        assert parts.table("D").number == 1
        await procedures.close()
        engine.close()


class TooLate(Sparkless):
    """What it works on is done when it is told to stop, and that is what the caller learns, as with the real engine."""

    async def work(
        self, work: Callable[[], T], what: str = "", *, stop: Callable[[], bool] | None = None, asks_spark: bool = True
    ) -> T:
        done = asyncio.create_task(super().work(work, what))
        while not done.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait((done,))
        return done.result()


async def test_what_ends_in_the_middle_of_its_commit_ends_all_the_same(data_dir: Path) -> None:
    """A run that can no longer be stopped is waited for, and nothing comes after it."""
    async with opened(data_dir) as parts:
        await parts.run(f"{SETUP} CREATE PROCEDURE p() {{ UPSERT INTO D {{'id': 1}} }} PERIOD 'P1D'; EXECUTE p()")
        loop, begun = asyncio.get_running_loop(), asyncio.Event()
        upsert = DatasetTable.upsert

        def slow(table: DatasetTable, *rows: object, **options: object) -> object:
            loop.call_soon_threadsafe(begun.set)
            asyncio.run_coroutine_threadsafe(ended.wait(), loop).result(30)
            return upsert(table, *rows, **options)  # type: ignore[arg-type]

        ended = asyncio.Event()
        with mock.patch.object(DatasetTable, "upsert", slow):
            clock = Days(parts, 1)
            engine = TooLate(
                cast("Any", None),
                lambda _spark: cast("PythonFunctions", None),
                parts.settings.data,
                threads=2,
                lost_limit=4,
            )
            procedures = Procedures(
                parts.catalog, parts.tables, engine, DmlHandler(parts.tables, engine), clock.now, clock.sleep
            )
            await procedures.start()
            async with asyncio.timeout(WITHIN_S):
                await begun.wait()
                closing = asyncio.create_task(procedures.close())
                await asyncio.sleep(0)
                ended.set()
                await closing
            engine.close()
        assert not clock.asleep.is_set()
        assert parts.table("D").number == 2


async def test_every_list_of_arguments_has_a_schedule_of_its_own_that_outlives_a_restart(data_dir: Path) -> None:
    put = "CREATE PROCEDURE put(id) { UPSERT INTO D {'id': id} } PERIOD 'P1D'"
    async with opened(data_dir) as parts:
        await parts.run(f"{SETUP} {put}")
        (entry,) = parts.catalog.catalog.procedures
        assert entry.schedules == (), "nothing runs before the first EXECUTE"
        answers = await parts.run("USE v; EXECUTE put(7); EXECUTE put(8); EXECUTE put(7)")
        assert [answer.get("existed", False) for answer in answers[1:]] == [False, False, True]
    async with opened(data_dir) as parts:
        (entry,) = parts.catalog.catalog.procedures
        assert [schedule.arguments for schedule in entry.schedules] == ["[7]", "[8]"]
        async with going(parts, 1.5):
            assert parts.table("D").number == 3
        async with going(parts, 1.6):
            assert parts.table("D").number == 3, "each tick ran once"
        await parts.run("USE v; DROP PROCEDURE put")
        assert parts.catalog.catalog.procedures == ()


async def test_a_procedure_of_an_earlier_version_goes_on_from_its_creation(data_dir: Path) -> None:
    async with opened(data_dir) as parts:
        await parts.run(f"{SETUP} CREATE PROCEDURE p() {{ UPSERT INTO D {{'id': 1}} }} PERIOD 'P1D'")
        (entry,) = parts.catalog.catalog.procedures
        body = entry_to_json(entry)
        del body["schedules"]
        earlier = entry_from_json(CatalogRow("procedure", "v", "p@0", body, 1))
        assert isinstance(earlier, ProcedureEntry)
        assert earlier.schedules == (ProcedureSchedule(entry.procedure_id, "[]", entry.anchor),)


async def test_schedules_are_bounded_and_drops_win_over_them(data_dir: Path) -> None:
    put = "CREATE PROCEDURE put(id) { UPSERT INTO D {'id': id} } PERIOD 'P1D'"
    async with opened(data_dir) as parts:
        await parts.run(f"{SETUP} {put}; {'; '.join(f'EXECUTE put({n})' for n in range(SCHEDULES_LIMIT))}")
        with pytest.raises(LimitError, match="100 lists of arguments"):
            await parts.run("USE v; EXECUTE put(-1)")
        await parts.run("USE v; EXECUTE put(5); DROP PROCEDURE put")
        with pytest.raises(NotFoundError, match="no procedure"):
            await parts.run("USE v; EXECUTE put(5)")
