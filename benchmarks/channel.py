"""Measures the CPU of a channel's execution, compared with a bare Spark join, for up to a million interests.

Keywords are compared with an equality of as many interests, records and results in the same rounds.

python -m benchmarks.channel [--small]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import psutil
import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.baselines.channel import BareJoin, keyword_texts, kinds, records
from benchmarks.harness import Bench, beside, with_children_cpu_s
from tocsin.language.channels.compiler import SharedQuery, compile_shared_query
from tocsin.language.syntax.script import parse_body
from tocsin.pipeline import session
from tocsin.pipeline.analysis import SparkTypeAnalyser
from tocsin.pipeline.channels import run_query
from tocsin.pipeline.channels.interests import InterestTable
from tocsin.pipeline.channels.run_query import ExecutionMoment, ExecutionResults
from tocsin.pipeline.datasets import layout
from tocsin.rules.model import types as t
from tocsin.rules.model.types import Field, ObjectType
from tocsin.store.channels.rows import BackendRequest, BrokerName, Execution
from tocsin.store.channels.sqlite.store import SqliteChannelStore

NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
BODY: Final = "SELECT VALUE r FROM Records AS r WHERE r.kind = wanted AND is_new(r)"
RECORD: Final = ObjectType(
    (Field("number", t.BIGINT), Field("kind", t.STRING), Field("severity", t.BIGINT), Field("message", t.STRING)),
    open=False,
)
_ROUNDS: Final = 5
_KEYWORD_ROUNDS: Final = 12  # the keywords have more code for Java to warm up
KEYWORDS: Final = {
    "contains": "contains(r.message, wanted)",
    "LIKE": "r.message LIKE concat('%', wanted, '%')",
    "ftcontains": "ftcontains(r.message, wanted)",
}
KEYWORD_BAR: Final = 3.0
_BROKER: Final = BrokerName("bench", "broker")


@dataclass(frozen=True, slots=True)
class _Dataset:
    dataverse: str = "bench"
    name: str = "Records"
    type: ObjectType = RECORD
    active: bool = True
    folder: str = "records"


class _Names:
    def find_dataset(self, _dataverse: str, name: str) -> _Dataset | None:
        return _Dataset() if name == "Records" else None

    def find_function(self, *_: object) -> None:
        return None

    def arities(self, *_: object) -> list[int]:
        return []

    def suggestions(self, *_: object) -> list[str]:
        return []


def new_rows(count: int, interests: int) -> pa.Table:
    return as_new(records(count, interests))


def as_new(made: list[dict[str, Any]]) -> pa.Table:
    count, rows = len(made), layout.to_arrow(made, RECORD)
    commits = pa.array([2] * count, pa.int64())
    ats = pa.array([NOW] * count, pa.timestamp("us", tz="UTC"))
    return rows.append_column("_commit", commits).append_column("_at", ats)


class Channel:
    """One channel with its interests, and a store for what it finds."""

    def __init__(self, spark: SparkSession, oracle: SparkTypeAnalyser, wanted: Sequence[str], body: str = BODY) -> None:
        self.spark = spark
        began_s = time.perf_counter()
        self.query: SharedQuery = compile_shared_query(
            parse_body(body), ["wanted"], {}, names=_Names(), type_analyser=oracle, dataverse="bench", continuous=True
        )
        self.plan_s = time.perf_counter() - began_s
        self.interests = InterestTable(spark, self.query)
        self.interests.change(((i, (value,)) for i, value in enumerate(wanted)), ())
        self.interests.prepared()
        self.in_one_task = True

    def join(self, rows: pa.Table) -> pa.Table:
        self.spark.createDataFrame(rows).createOrReplaceTempView("tocsin_records")
        moment = ExecutionMoment(
            NOW, NOW, {dataset.since: 1 for dataset in self.query.watched}, in_one_task=self.in_one_task
        )
        return run_query.query_matches(self.spark, self.query, self.interests, lambda _: "tocsin_records", moment)

    def encode(self, table: pa.Table) -> ExecutionResults:
        found = run_query.encode_results(table, self.query, self.interests.gone)
        self.in_one_task = run_query.fits_one_task(len(self.interests), found)
        return found


def wanted_kinds(count: int) -> list[str]:
    choice = kinds(count)
    return [f"k{i % choice}" for i in range(count)]


class Kept:
    """The store's side: an execution with its results, committed."""

    def __init__(self, store: SqliteChannelStore, channel_id: int) -> None:
        self._store = store
        self._channel = channel_id

    async def commit(self, found: ExecutionResults) -> None:
        state = await self._store.state(self._channel)
        payloads = [found.texts[index] for index in found.payloads.tolist()]
        execution = Execution(number=state.last_execution + 1, started_us=0, ended_us=1, vector={"records": 2})
        await self._store.commit_execution(self._channel, execution, (found.interests + 1).tolist(), payloads)


def measured(work: Callable[[], Any]) -> tuple[float, Any]:
    began_s = with_children_cpu_s()
    made = work()
    return with_children_cpu_s() - began_s, made


async def subscribed(store: SqliteChannelStore, count: int) -> Kept:
    channel_id = await store.add_channel()
    for begin in range(0, count, 50_000):
        wanted = [BackendRequest(f"[{i}]", _BROKER) for i in range(begin, min(begin + 50_000, count))]
        await store.subscribe(channel_id, wanted, created_us=0)
    return Kept(store, channel_id)


async def sizes(bench: Bench, spark: SparkSession, folder: Path, counts: list[int], published: int) -> None:
    oracle = SparkTypeAnalyser(spark)
    store = SqliteChannelStore(folder / "channels.db")
    await store.open()
    try:
        for count in counts:
            rows = new_rows(published, count)
            bare, channel = BareJoin(spark, count), Channel(spark, oracle, wanted_kinds(count))
            kept = await subscribed(store, count)
            first, again, joins, wholes, encodes, commits = [], [], [], [], [], []
            for turn in range(_ROUNDS + 1):
                before, _ = measured(lambda: bare.run(rows))  # noqa: B023 - called here
                join, table = measured(lambda: channel.join(rows))  # noqa: B023
                encode, found = measured(lambda: channel.encode(table))  # noqa: B023
                began_s = with_children_cpu_s()
                await kept.commit(found)
                commit = with_children_cpu_s() - began_s
                after, _ = measured(lambda: bare.run(rows))  # noqa: B023
                if turn == 0:
                    continue  # Java warms up
                first.append(before)
                again.append(after)
                joins.append(join)
                encodes.append(encode)
                commits.append(commit)
                wholes.append(join + encode + commit)
            largest = count == counts[-1]
            size = f"{count:,} interests × {published:,} records → {len(found):,} results"
            name = f"bare join, {count:,}"
            bench.compared(f"join stage, {size}", beside(joins, first, again, name=""), bar=2.0, baseline=name)
            bench.compared(
                f"whole execution, {count:,} interests", beside(wholes, first, again, name=""),
                bar=6.0 if largest else None, baseline=name,
            )  # fmt: skip
            bench.note(
                f"{count:,} interests: plan {channel.plan_s * 1000:.0f} ms once; encode "
                f"{statistics.median(encodes) * 1000:.0f} ms, commit {statistics.median(commits) * 1000:.0f} ms CPU"
            )
            if largest:
                smallest(bench, bare, channel, rows)
                more(bench, channel, rows, count)
                memory = sum(process.memory_info().rss for process in _processes()) / 1e9
                bench.bar(f"memory with {count:,} interests", memory, bar=4.0, unit="GB")
                extrapolated(bench, bare, rows, count)
            bare.close()
            channel.interests.close()
    finally:
        await store.close()


def smallest(bench: Bench, bare: BareJoin, channel: Channel, rows: pa.Table) -> None:
    row = rows.slice(0, 1)
    first, again, taken = [], [], []
    for turn in range(3 * _ROUNDS):
        before, _ = measured(lambda: bare.run(row))
        mine, _ = measured(lambda: channel.encode(channel.join(row)))
        after, _ = measured(lambda: bare.run(row))
        if turn >= _ROUNDS:
            first.append(before)
            taken.append(mine)
            again.append(after)
    bench.compared("smallest execution (one record)", beside(taken, first, again, name=""), bar=1.5, baseline="bare")


def more(bench: Bench, channel: Channel, rows: pa.Table, count: int) -> None:
    """A thousand interests more, until the next execution has them."""
    row = rows.slice(0, 1)
    times = []
    for turn in range(3):
        added = [(count + 1_000 * turn + i, (f"new{turn}-{i}",)) for i in range(1_000)]
        began_s = time.perf_counter()
        channel.interests.change(added, ())
        channel.join(row)
        times.append(time.perf_counter() - began_s)
    bench.bar(f"1,000 interests more beside {count:,}: until they took part", min(times), bar=1.0, unit="s")


def extrapolated(bench: Bench, bare: BareJoin, rows: pa.Table, count: int) -> None:
    few = 20
    bare.one_by_one(rows, ["k0"])
    cpu_s, _ = measured(lambda: bare.one_by_one(rows, [f"k{i}" for i in range(few)]))
    bench.note(
        f"One query per subscription: {cpu_s / few * 1000:.0f} ms CPU each, {cpu_s / few * count / 3600:,.1f} hours of "
        f"CPU for {count:,} (from {few})"
    )


def hundred(bench: Bench, spark: SparkSession, published: int) -> None:
    """A hundred channels that watch one dataset."""
    oracle = SparkTypeAnalyser(spark)
    channels = [Channel(spark, oracle, wanted_kinds(1_000)) for _ in range(100)]
    rows = new_rows(published, 1_000)
    for channel in channels[:10]:
        channel.join(rows)
    cpu_s, _ = measured(lambda: [channel.encode(channel.join(rows)) for channel in channels])
    bench.note(f"100 channels of 1,000 interests on one dataset, {published:,} records: {cpu_s:.1f} s CPU in all")
    for channel in channels:
        channel.interests.close()


def keywords(bench: Bench, spark: SparkSession, count: int, published: int) -> None:
    """Keywords, patterns and words against an equality of the same size."""
    oracle = SparkTypeAnalyser(spark)
    wanted, made = keyword_texts(published, count)
    rows = as_new(made)
    equality = Channel(spark, oracle, wanted_kinds(count))
    for name, condition in KEYWORDS.items():
        channel = Channel(spark, oracle, wanted, f"SELECT VALUE r FROM Records AS r WHERE {condition} AND is_new(r)")
        first, taken, again = [], [], []
        for turn in range(_KEYWORD_ROUNDS + _ROUNDS):
            before, _ = measured(lambda: equality.encode(equality.join(rows)))
            mine, found = measured(lambda: channel.encode(channel.join(rows)))  # noqa: B023 - called here
            after, same = measured(lambda: equality.encode(equality.join(rows)))
            if turn >= _KEYWORD_ROUNDS:
                first.append(before)
                taken.append(mine)
                again.append(after)
        size = f"{count:,} keywords × {published:,} texts → {len(found):,} results"
        bench.compared(
            f"{name}, {size}", beside(taken, first, again, name=""),
            bar=KEYWORD_BAR, baseline=f"equality → {len(same):,} results",
        )  # fmt: skip
        channel.interests.close()
    equality.interests.close()


def _processes() -> list[psutil.Process]:
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="up to 10,000 interests: to see that it runs")
    small = parser.parse_args().small
    bench = Bench("channel")
    with tempfile.TemporaryDirectory(prefix="tocsin-bench-") as scratch:
        folder = Path(scratch)
        spark = session.start(folder / "spark", master="local[*]", driver_memory="2g", conf={})
        try:
            counts = [1_000, 10_000] if small else [1_000, 10_000, 100_000, 1_000_000]
            asyncio.run(sizes(bench, spark, folder, counts, 1_000 if small else 10_000))
            keywords(bench, spark, 10_000 if small else 100_000, 1_000)
            hundred(bench, spark, 100)
        finally:
            session.stop(spark)
    bench.finish()


if __name__ == "__main__":
    main()
