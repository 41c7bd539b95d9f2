"""Executions: every row version is new once per channel, whether it is read from memory or from files."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.in_process_cluster import LocalCluster
from tests.support.running_channels import OF_KIND, SETUP, WITHIN_S, RunningChannelDataverse, record
from tests.support.waiting import wait_until
from tocsin.clock import to_us
from tocsin.cluster.channels.executions import commit_range as reading_module
from tocsin.cluster.channels.executions.execution import ChannelExecution
from tocsin.pipeline.datasets.upkeep import UpkeepLimits, upkeep
from tocsin.rules.model.values import Duration
from tocsin.wire.cluster import SubscriptionRequest

FEED = """
CREATE FEED F WITH {"adapter-name": "http_adapter", "type-name": "R"};
CONNECT FEED F TO DATASET D; START FEED F;
"""
DAILY = """
CREATE CONTINUOUS CHANNEL c(k) PERIOD duration("P1D") {
    SELECT VALUE [d.id, d.n] FROM D d WHERE is_new(d) AND d.kind = k
};
"""


@pytest.fixture
def place(cluster: LocalCluster, dataverse: str) -> RunningChannelDataverse:
    made = RunningChannelDataverse(cluster, dataverse)
    made.run(SETUP)
    return made


def tick(place: RunningChannelDataverse, number: int) -> datetime:
    return place.running().entry.anchor + timedelta(days=number)


def test_an_upsert_is_new_and_a_delete_is_nothing(place: RunningChannelDataverse) -> None:
    place.run(OF_KIND.replace("d.id FROM", "[d.id, d.n] FROM"))
    mine = place.subscribe('"a"')
    place.write(record(1, n=1), record(2, n=1))
    place.caught_up()
    place.write(record(1, n=2))
    place.caught_up()
    place.run("DELETE FROM D d WHERE d.id = 2")
    place.caught_up()
    place.write(record(1, "b", n=3))
    place.told_once(mine, [[1, 1], [2, 1], [1, 2]])


def test_a_periodic_channel_sees_the_version_that_is_current_at_the_end(place: RunningChannelDataverse) -> None:
    place.run(DAILY)
    mine = place.subscribe('"a"')
    place.write(record(1, n=1), record(2, n=1), record(3, n=1))
    place.write(record(1, n=2))
    place.run("DELETE FROM D d WHERE d.id = 2")
    place.execute(at=tick(place, 1))
    assert sorted(place.told(mine)) == [[1, 2], [3, 1]]
    before = place.state()
    place.execute(at=tick(place, 2))
    assert place.state() == before, "nothing is new: nothing is executed"
    place.write(record(3, n=5))
    place.execute(at=tick(place, 3))
    assert sorted(place.told(mine)) == [[1, 2], [3, 1], [3, 5]]
    assert [execution.number for execution in place.executions()] == [3, 2, 1]


def test_of_two_watched_datasets_every_pair_is_told_once(place: RunningChannelDataverse) -> None:
    place.run("""
        CREATE CONTINUOUS CHANNEL c(k) PERIOD duration("P1D") {
            SELECT VALUE [d.id, e.id] FROM D d, E e WHERE (is_new(d) OR is_new(e)) AND d.n = e.n AND d.kind = k
        };
    """)
    mine = place.subscribe('"a"')
    wanted: list[list[int]] = []
    for step, (ds, es) in enumerate([((1, 2), ()), ((), (1,)), ((3,), (2, 3)), ((), ()), ((4,), ())], 1):
        if ds:
            place.write(*(record(item) for item in ds))
        if es:
            place.write(*(record(item) for item in es), dataset="E")
        place.execute(at=tick(place, step))
    wanted = [[d, e] for d in (1, 2, 3, 4) for e in (1, 2, 3)]
    assert sorted(place.told(mine)) == wanted


@pytest.mark.parametrize("memory", [True, False], ids=["from memory", "from files"])
def test_a_continuous_channel_follows_a_feed_batch_by_batch(
    place: RunningChannelDataverse, monkeypatch: pytest.MonkeyPatch, memory: bool
) -> None:
    place.run(OF_KIND + FEED)
    first, batches = place.subscribe('"a"'), 5
    if not memory:
        monkeypatch.setattr(reading_module.CommitRange, "new_rows_in_memory", lambda _self, _folder: None)
    for batch in range(batches):
        place.send(*(record(10 * batch + i, "ab"[i % 2]) for i in range(6)))
    second = place.subscribe('"b"')
    place.send(record(100, "b"), record(101, "a"))
    place.told_once(first, [*(10 * batch + i for batch in range(batches) for i in (0, 2, 4)), 101])
    assert 100 in place.told(second)
    numbers = [execution.number for execution in reversed(place.executions())]
    assert numbers == list(range(1, len(numbers) + 1))
    assert all(execution.reason is None for execution in place.executions())


def test_many_commits_a_load_and_a_compaction_between_two_executions_are_all_new_once(
    place: RunningChannelDataverse, tmp_path: Path
) -> None:
    place.run(DAILY)
    mine = place.subscribe('"a"')
    for i in range(UpkeepLimits().files_per_compaction):
        place.write(record(i), verb="INSERT")
    source = tmp_path / "rows.json"
    source.write_text("".join(json.dumps(record(100 + i)) + "\n" for i in range(50)))
    place.run(f'LOAD DATASET D USING localfs (("path"="{source}"),("format"="json"))')
    place.execute(at=tick(place, 1))
    ids = [*range(UpkeepLimits().files_per_compaction), *range(100, 150)]
    assert sorted(place.told(mine)) == [[i, 0] for i in ids]
    # A compaction joins old rows with new ones in a file.
    place.write(record(200))
    table = place.parts.tables.table(place.parts.catalog.catalog.dataset(place.dataverse, "D"))
    upkeep(table)
    assert len(table.past.state.files) < UpkeepLimits().files_per_compaction, "here or in the background"
    place.write(record(201))
    place.execute(at=tick(place, 2))
    assert sorted(place.told(mine)) == [[i, 0] for i in (*ids, 200, 201)]


def test_a_channel_goes_on_where_it_was_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    first = LocalCluster(spark, tmp_path)
    try:
        place = RunningChannelDataverse(first, "Default")
        place.run(SETUP + OF_KIND)
        mine = place.subscribe('"a"')
        place.write(record(1))
        place.told_once(mine, [1])
        # It ends before it has read this.
        first.wait(place.parts.channels.close())
        place.write(record(2), record(3, "b"))
        before = place.state()
    finally:
        first.close()
    again = LocalCluster(spark, tmp_path)
    try:
        place = RunningChannelDataverse(again, "Default")
        place.told_once(mine, [1, 2])
        assert place.state().last_execution == before.last_execution + 1
        place.write(record(4))
        place.told_once(mine, [1, 2, 4])
    finally:
        again.close()


def test_datasets_that_went_back_begin_a_new_epoch_and_what_comes_then_is_new(
    spark: SparkSession, tmp_path: Path
) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    first = LocalCluster(spark, data)
    try:
        place = RunningChannelDataverse(first, "Default")
        place.run(SETUP + OF_KIND)
        mine, folder = place.subscribe('"a"'), place.folder()
        place.write(record(1))
        place.told_once(mine, [1])
        shutil.copytree(data / "datasets" / folder, copy)
        for i in (2, 3):
            place.write(record(i))
        place.told_once(mine, [1, 2, 3])
        epoch, last = place.parts.channel_store.epoch, place.state().last_execution
    finally:
        first.close()
    shutil.rmtree(data / "datasets" / folder)
    shutil.copytree(copy, data / "datasets" / folder)
    again = LocalCluster(spark, data)
    try:
        place = RunningChannelDataverse(again, "Default")
        assert place.parts.channel_store.epoch > epoch
        assert place.state().vector == {folder: 1}
        # These have the numbers of commits that are lost.
        place.write(record(4))
        place.write(record(5))
        place.told_once(mine, [1, 2, 3, 4, 5])
        epoch = place.parts.channel_store.epoch
        numbers = [execution.number for execution in reversed(place.executions())]
        assert numbers == list(range(1, len(numbers) + 1))
        assert numbers[-1] > last
    finally:
        again.close()
    third = LocalCluster(spark, data)
    try:
        assert third.cluster.channel_store.epoch == epoch, "once is enough"
    finally:
        third.close()


def test_who_subscribes_while_an_execution_runs_misses_nothing_that_is_committed_later(
    place: RunningChannelDataverse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The states are read first, then the interests: in between may come a subscription, and a record for it."""
    place.run(OF_KIND)
    first = place.subscribe('"a"')
    place.caught_up()
    store, own_id = place.parts.channel_store, place.running().entry.channel_id
    read_changes, holding, go_on = store.interest_changes, threading.Event(), threading.Event()

    async def held(channel_id: int, *args: Any) -> Any:
        if channel_id == own_id:
            holding.set()
            while not go_on.is_set():
                await asyncio.sleep(0.01)
        return await read_changes(channel_id, *args)

    monkeypatch.setattr(store, "interest_changes", held)
    place.write(record(1))
    assert holding.wait(WITHIN_S)
    second = place.subscribe('"b"')
    place.write(record(2, "b"), record(3, "a"))
    go_on.set()
    place.told_once(first, [1, 3])
    assert place.told(second) == [2]


def test_a_repetitive_channel_without_is_new_tells_its_whole_answer_each_time(place: RunningChannelDataverse) -> None:
    place.run("""
        CREATE FUNCTION f(k) { SELECT VALUE d.id FROM D d WHERE d.kind = k };
        CREATE REPETITIVE CHANNEL c USING f@1 PERIOD duration("P1D")
    """)
    place.write(record(1))
    place.execute(at=tick(place, 1))
    assert place.state().last_execution == 1, "nobody is interested: nothing is executed"
    mine = place.subscribe('"a"')
    for number in (2, 3):
        place.execute(at=tick(place, number))
    assert place.told(mine) == [1, 1]
    assert [execution.tick_us for execution in place.executions()][:2] == [
        to_us(tick(place, number)) for number in (3, 2)
    ]


WINDOW = """
CREATE CONTINUOUS CHANNEL c(k) PERIOD duration("P1D") {
    SELECT VALUE d.id FROM D d WHERE d.kind = k AND active_timestamp(d) > previous_channel_time()
};
"""


def test_late_ticks_find_each_record_in_the_window_of_its_own_tick(place: RunningChannelDataverse) -> None:
    place.run(WINDOW)
    mine = place.subscribe('"a"')
    instants = []
    for number in (1, 2, 3):
        place.write(record(number), record(10 + number))
        if number > 1:
            place.write(record(10))  # a rewrite: the state before it is read from files of the past
        instants.append(datetime.now(UTC))
    for at in instants:
        place.execute(at=at)
    assert [sorted(ids) for ids in (place.told(mine)[:2], place.told(mine)[2:5], place.told(mine)[5:])] == [
        [1, 11], [2, 10, 12], [3, 10, 13],
    ]  # fmt: skip
    assert place.running().counts.missed_ticks == 0


def test_a_tick_whose_state_is_no_longer_kept_coalesces_with_the_next_and_is_counted(
    place: RunningChannelDataverse,
) -> None:
    place.run("""
        DROP DATASET D; CREATE ACTIVE DATASET D(R) PRIMARY KEY id WITH {"history": 1};
        CREATE CONTINUOUS CHANNEL c(k) PERIOD duration("PT1H") {
            SELECT VALUE [d.id, d.n] FROM D d WHERE d.kind = k AND active_timestamp(d) > previous_channel_time()
        };
    """)
    mine = place.subscribe('"a"')
    place.write(record(1, n=1))
    gone = datetime.now(UTC)
    place.write(record(1, n=2))
    place.write(record(1, n=3))
    running = place.running()
    # As if it had been created three hours ago: of its three ticks the first two are followed by another.
    running.entry = replace(running.entry, anchor=running.entry.anchor - timedelta(hours=3))
    for hours in (1, 2):
        place.execute(at=running.entry.anchor + timedelta(hours=hours))
    assert (place.told(mine), running.counts.missed_ticks) == ([], 2)
    place.execute(at=gone)
    assert place.told(mine) == [[1, 3]], "the latest tick that is due reads the datasets as they are"
    assert running.counts.missed_ticks == 2


def test_a_tick_at_which_the_query_fails_is_given_up_when_the_next_one_is_due(place: RunningChannelDataverse) -> None:
    place.run("""
        CREATE FUNCTION f(k) { SELECT VALUE d.id FROM D d WHERE d.kind = k AND 100 div d.n > 0 };
        CREATE REPETITIVE CHANNEL c USING f@1 PERIOD duration("PT1H")
    """)
    mine = place.subscribe('"a"')
    place.write(record(1, n=1), record(2, n=0))
    running = place.running()
    running.entry = replace(running.entry, anchor=running.entry.anchor - timedelta(hours=1))
    failing = datetime.now(UTC) - timedelta(milliseconds=1)
    wait_until(lambda: datetime.now(UTC) > running.entry.anchor + timedelta(hours=1), "the next tick is due")
    place.wait(running.execute_with_retries(running.entry.anchor + timedelta(minutes=1)))
    assert (place.told(mine), running.counts.missed_ticks) == ([], 0), "there was nothing yet"
    running.entry = replace(running.entry, anchor=failing - timedelta(hours=1), period=Duration(micros=100_000))
    place.wait(running.execute_with_retries(datetime.now(UTC)))
    assert (place.told(mine), running.counts.missed_ticks) == ([], 1)
    assert running.trouble is not None
    place.run("DELETE FROM D d WHERE d.n = 0")
    place.execute(at=datetime.now(UTC))
    assert place.told(mine) == [1]


def test_a_condition_on_time_is_answered_although_nothing_is_new(place: RunningChannelDataverse) -> None:
    place.run("""
        CREATE CONTINUOUS CHANNEL c(k) PERIOD duration("P1D") {
            SELECT VALUE d.id FROM D d
            WHERE (is_new(d) OR current_datetime() > datetime("9000-01-01T00:00:00Z")) AND d.kind = k
        };
    """)
    mine = place.subscribe('"a"')
    place.write(record(1))
    place.execute(at=tick(place, 1))
    place.execute(at=tick(place, 2))
    assert place.told(mine) == [1]
    place.execute(at=datetime(9500, 1, 1, tzinfo=UTC))
    assert place.told(mine) == [1, 1]


def test_where_nothing_is_new_or_nobody_is_interested_spark_runs_no_job(
    place: RunningChannelDataverse, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Any] = []
    execute = ChannelExecution.execute
    monkeypatch.setattr(ChannelExecution, "execute", lambda *args: ran.append(args) or execute(*args))
    place.run("""
        CREATE CONTINUOUS CHANNEL c(k) PERIOD duration("P1D") {
            SELECT VALUE d.id FROM D d WHERE is_new(d) AND d.kind = k AND d.at < 1e9
                AND previous_channel_time() < current_channel_time()
        };
    """)
    place.write(record(1))
    place.execute(at=tick(place, 1))
    assert place.state().vector == {place.folder(): 1}, "what came while nobody was interested is not new later"
    mine = place.subscribe('"a"')
    for number in (2, 3):
        place.execute(at=tick(place, number))
    assert ran == []
    assert place.state().tick_us == to_us(tick(place, 3)), "the previous time is told all the same"
    place.write(record(2))
    place.execute(at=tick(place, 4))
    assert (len(ran), place.told(mine)) == (1, [2])


def test_channels_that_share_a_dataset_share_the_reading_of_its_new_rows(
    place: RunningChannelDataverse, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed: list[int] = []
    names = [f"c{i}" for i in range(4)]
    place.run("".join(DAILY.replace("c(k)", f"{name}(k)") for name in names))
    mine = {name: place.subscribe('"a"', channel=name) for name in names}
    place.write(record(1), record(2, "b"))
    views = place.running(names[0]).context.engine.views
    of_rows = views.of_rows
    monkeypatch.setattr(views, "of_rows", lambda rows: handed.append(rows.num_rows) or of_rows(rows))
    for name in names:
        place.execute(name)
    assert handed == [2]
    assert [place.told(mine[name], name) for name in names] == [[[1, 0]]] * 4


def test_interests_that_come_and_go_by_thousands_are_followed(place: RunningChannelDataverse) -> None:
    place.run("CREATE CONTINUOUS CHANNEL c(n: bigint) { SELECT VALUE d.id FROM D d WHERE is_new(d) AND d.n = n };")
    made = place.subscribe_all(*(SubscriptionRequest([i], f"s{i:05}") for i in range(6_000)))
    place.write(*(record(i, n=i) for i in (0, 1, 5_999)))
    place.caught_up()
    assert [place.told(text) for text in ("s00000", "s00001", "s05999", "s00002")] == [[0], [1], [5_999], []]
    # Some go and some come beside those that Spark holds.
    gone = [item.id for item in made[1:100]]
    place.wait(place.parts.channel_store.unsubscribe(place.running().entry.channel_id, gone))
    place.subscribe_all(SubscriptionRequest([7_000], "late"), SubscriptionRequest([1], "again"))
    place.write(*(record(10_000 + i, n=i) for i in (0, 1, 5_999, 7_000)))
    place.caught_up()
    assert [place.told(text) for text in ("s00000", "s05999", "late", "again")] == [
        [0, 10_000], [5_999, 15_999], [17_000], [10_001],
    ]  # fmt: skip
    assert place.executions()[0].results == 4


def test_one_after_the_other_channels_and_commits_at_once_lose_nothing(place: RunningChannelDataverse) -> None:
    """Channels are made while records arrive: each sees every record from some commit on."""
    place.run(FEED)
    stop, sent = threading.Event(), []

    def publish() -> None:
        while not stop.is_set():
            place.send(record(len(sent)))
            sent.append(len(sent))

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        names = [f"c{i}" for i in range(3)]
        for name in names:
            place.run(OF_KIND.replace("c(k)", f"{name}(k)"))
        mine = {name: place.subscribe('"a"', channel=name) for name in names}
        reached = len(sent)
        wait_until(lambda: len(sent) > reached + 20, "records arrive", WITHIN_S)
    finally:
        stop.set()
        publisher.join()
    for name in names:
        place.caught_up(name)
        told = place.told(mine[name], name)
        assert told == list(range(told[0], len(sent)))
        assert told[0] <= reached
