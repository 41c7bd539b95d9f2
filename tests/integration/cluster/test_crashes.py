"""kill -9 at every named place: afterwards each statement happened wholly or not at all, and life goes on."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.dataset_histories import EMPTY, ClusterContent, seen
from tests.support.real_processes import environment
from tests.support.small_tables import EAGER
from tests.support.sparkless_process import Parts, opened
from tocsin import compose, faults
from tocsin.cluster.backup.backup_writer import write_backup
from tocsin.pipeline.datasets.upkeep import upkeep
from tocsin.settings import Settings

LOADED = 5
HISTORY = 2


def steps(source: Path) -> list[tuple[str, ClusterContent]]:
    """A life: each statement, and the world after it."""
    world = EMPTY
    life: list[tuple[str, ClusterContent]] = []

    def then(statement: str, after: ClusterContent) -> None:
        nonlocal world
        world = after
        life.append((statement, world))

    first, second = {1: "a", 2: "a"}, {3: "b"}
    loaded = {100 + i: "l" for i in range(LOADED)}
    upserted = {**first, **second, 2: "u", 4: "u"}
    load = f'LOAD DATASET v.D USING localfs (("path"="{source}"),("format"="json"))'
    then("CREATE DATAVERSE v", world.made("dataverse v"))
    then("CREATE TYPE v.T AS { id: int, said: string }", world.made("type T"))
    make = f'CREATE ACTIVE DATASET v.D(T) PRIMARY KEY id WITH {{"history": {HISTORY}}}'
    then(make, world.made("dataset D"))
    then('INSERT INTO v.D [{"id": 1, "said": "a"}, {"id": 2, "said": "a"}]', world.wrote("D", first))
    then('INSERT INTO v.D {"id": 3, "said": "b"}', world.wrote("D", {**first, **second}))
    then("upkeep D", world)
    then('UPSERT INTO v.D [{"id": 2, "said": "u"}, {"id": 4, "said": "u"}]', world.wrote("D", upserted))
    then(load, world.wrote("D", {**upserted, **loaded}))
    then("upkeep D", world)
    then("CREATE INDEX i ON v.D(said) TYPE BTREE", world.made("index D.i"))
    then('CREATE FUNCTION v.f(a) { {"b": a} }', world.made("function f@1"))
    then("backup", world)
    then("DELETE FROM v.D", world.wrote("D", {}))
    then('INSERT INTO v.D {"id": 5, "said": "c"}', world.wrote("D", {5: "c"}))
    then("upkeep D", world)
    retention = 'WITH {"retention": duration("PT0.001S")}'
    then(f"CREATE DATASET v.E(T) PRIMARY KEY id {retention}", world.made("dataset E"))
    then('INSERT INTO v.E {"id": 1, "said": "e"}', world.wrote("E", {1: "e"}))
    then("upkeep E", world.wrote("E", {}, commit=0))
    then("DROP DATASET v.E", world.dropped("dataset E"))
    then("DROP FUNCTION v.f@1", world.dropped("function f@1"))
    then("restore", world)
    then("DROP DATAVERSE v", world.dropped("dataverse v", "type T", "dataset D", "index D.i"))
    return life


async def take(parts: Parts, statement: str) -> None:
    verb, _, name = statement.partition(" ")
    if verb == "upkeep":
        table = parts.table(name)
        table.leftovers = True
        await asyncio.to_thread(upkeep, table, EAGER)
    elif verb == "backup":
        target = parts.settings.data.parent / "saved"
        if not target.exists():
            tables = parts.tables.by_folder(parts.catalog.catalog.datasets)
            await write_backup(parts.store, lambda: tables, target, data=parts.settings.data)
    elif verb == "restore":
        target = parts.settings.data.parent / "restored"
        if not target.exists():
            settings = Settings.load(None, {}, {"data": target})
            await compose.restore(settings, parts.settings.data.parent / "saved", lambda _done, _all: None)
    else:
        await parts.run(statement)


async def live(data: Path, source: Path) -> None:
    """Take the steps one after the other, and say so after each."""
    async with opened(data) as parts:
        for place, (statement, _) in enumerate(steps(source)):
            await take(parts, statement)
            print(place, flush=True)


async def after_the_crash(data: Path, source: Path, told: int) -> None:
    """The world is as after the last step that was told of, or after the one on its way; the rest can be lived."""
    life = steps(source)
    worlds = [EMPTY, *(world for _, world in life)]
    async with opened(data) as parts:
        world = seen(parts)
        assert world in (worlds[told], worlds[told + 1])
        begin = told if world == worlds[told] else told + 1
        for statement, after in life[begin:]:
            await take(parts, statement)
            assert seen(parts) == after, statement


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "rows.json"
    path.write_text("".join(f'{{"id": {100 + i}, "said": "l"}}\n' for i in range(LOADED)))
    return path


# The rooms whose places this life passes.
HERE = ("store.", "create-dataset.", "drop-dataset.", "removal.", "dataset.", "backup.", "restore.")
# What every catalog change passes is visited at each of them, and so is a commit.
CHANGES = 14
VISITS = [
    *((point, 1) for point in faults.POINTS if point.startswith(HERE) and not point.startswith("store.commit.")),
    *(("store.commit.before", nth) for nth in range(1, CHANGES + 1)),
    *(("store.commit.after", nth) for nth in range(1, CHANGES + 1)),
    *(("dataset.commit.written", nth) for nth in range(2, 7)),
]


@pytest.mark.parametrize(("point", "nth"), VISITS)
def test_killed_at_any_place_each_statement_happened_or_did_not(
    point: str, nth: int, tmp_path: Path, source: Path
) -> None:
    data = tmp_path / "data"
    process = subprocess.run(
        [sys.executable, "-m", "tests.integration.cluster.test_crashes", str(data), str(source)],
        env=environment(TOCSIN_CRASH_AT=f"{point}:{nth}"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == -signal.SIGKILL, f"{point} was not visited: {process.stderr}"
    asyncio.run(after_the_crash(data, source, len(process.stdout.split())))


def test_every_place_is_visited() -> None:
    """Those of other rooms by tests of their own, which take all places that begin with the room's name."""
    others = [path.read_text() for path in Path(__file__).parents[1].rglob("test_*crash*.py") if path != Path(__file__)]
    visited = {point for point, _ in VISITS}
    for point in faults.POINTS:
        room = f'point.startswith("{point.partition(".")[0]}.")'
        assert point in visited or any(room in text for text in others), point


if __name__ == "__main__":
    asyncio.run(live(Path(sys.argv[1]), Path(sys.argv[2])))
