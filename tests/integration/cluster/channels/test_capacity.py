"""Executions that the engine has no room or no time for: nobody goes without a result that can be had."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from tests.support.in_process_cluster import LocalCluster
from tests.support.python_sources import Modules
from tests.support.running_channels import RunningChannelDataverse
from tocsin.cluster.channels.executions.limits import ExecutionLimits, PartLimits
from tocsin.cluster.engine.engine_session import EngineLostError, engine_lost
from tocsin.pipeline.channels.interests import InterestLimits
from tocsin.pipeline.channels.run_query import ExecutionResults
from tocsin.rules.model.cursors import Range
from tocsin.store.channels.rows import RecordedExecution
from tocsin.wire.cluster import SubscriptionRequest
from tocsin.wire.errors import CapacityError

SETUP = """
CREATE TYPE Report AS { id: int, kind: string, n: bigint, said: string };
CREATE ACTIVE DATASET D(Report) PRIMARY KEY id;
CREATE BROKER b AT "http://127.0.0.1:9/";
"""
SAME = "d.id, d.said"
OWN = "d.id, d.said, who"
NEW = "FROM D d WHERE is_new(d) AND d.kind = k AND d.n < who"
FEW_CACHED = InterestLimits(cached_from=5)
EVERY = "FROM D d WHERE d.kind = k AND d.n < who"


@pytest.fixture
def limits() -> ExecutionLimits | None:
    """A test with limits of its own has a cluster of its own."""
    return None


@pytest.fixture
def place(
    request: pytest.FixtureRequest, tmp_path: Path, limits: ExecutionLimits | None
) -> Iterator[RunningChannelDataverse]:
    if limits is None:
        yield placed(request.getfixturevalue("cluster"), request.getfixturevalue("dataverse"))
        return
    with closing(LocalCluster(request.getfixturevalue("spark"), tmp_path, limits=limits)) as cluster:
        yield placed(cluster, "Default")


def placed(cluster: LocalCluster, dataverse: str) -> RunningChannelDataverse:
    made = RunningChannelDataverse(cluster, dataverse)
    made.run(SETUP)
    return made


@contextmanager
def result_limit(spark: SparkSession, size: str) -> Iterator[None]:
    """Spark's own limit, which its scheduler looks at for every job."""
    conf: Any = spark.sparkContext._jsc.sc().conf()
    before = conf.get("spark.driver.maxResultSize")
    conf.set("spark.driver.maxResultSize", size)
    try:
        yield
    finally:
        conf.set("spark.driver.maxResultSize", before)


def create(place: RunningChannelDataverse, what: str, sources: str, name: str = "c") -> None:
    kind = "CONTINUOUS" if sources is NEW else "REPETITIVE"
    place.run(f'CREATE {kind} CHANNEL {name}(k, who) PERIOD duration("P1D") {{ SELECT {what} {sources} }};')


def report(id_: int, n: int = 1) -> dict[str, Any]:
    return {"id": id_, "kind": "a", "n": n, "said": f"{id_:04} " + "x" * 1_000}


def subscribe(place: RunningChannelDataverse, count: int, name: str = "c") -> list[str]:
    wanted = [SubscriptionRequest(["a", 10 + number]) for number in range(count)]
    return [subscription.id for subscription in place.subscribe_all(*wanted, channel=name)]


def succeeded(place: RunningChannelDataverse, name: str = "c") -> RecordedExecution:
    """The last execution; none before it has failed."""
    assert all(execution.reason is None for execution in place.executions(name))
    return place.executions(name)[0]


@pytest.mark.parametrize("what", [SAME, OWN], ids=["the same for all", "each its own"])
@pytest.mark.parametrize("sources", [NEW, EVERY], ids=["continuous", "repetitive"])
def test_a_report_that_concerns_ten_thousand_reaches_all_of_them(
    place: RunningChannelDataverse, spark: SparkSession, what: str, sources: str
) -> None:
    create(place, what, sources)
    subscriptions = subscribe(place, 10_000)
    place.write(report(1))
    before = place.state().last_execution
    with result_limit(spark, "2m"):
        place.execute()
    done = succeeded(place)
    assert done.number == before + 1, "however many parts there were, it is one execution"
    assert done.results == 10_000
    assert done.details.get("poison_records", []) == []
    for subscription in subscriptions[:: len(subscriptions) // 10]:
        assert [result["id"] for result in place.told(subscription)] == [1]
    assert place.running().counts.parts == 0 if what is SAME else place.running().counts.parts > 1


@pytest.mark.parametrize("sources", [NEW, EVERY], ids=["continuous", "repetitive"])
def test_parts_are_few_for_their_results_although_most_subscriptions_do_not_match(
    place: RunningChannelDataverse, spark: SparkSession, sources: str
) -> None:
    create(place, OWN, sources)
    place.subscribe_all(*(SubscriptionRequest(["a" if number < 700 else "b", 10 + number]) for number in range(770)))
    before = 0
    for reports in ([report(1)], [{**report(id_), "kind": "b"} for id_ in range(100, 120)]):
        place.write(*reports)
        with result_limit(spark, "200k"):
            place.execute()
        results = 700 if reports[0]["kind"] == "a" else 1_400 + 700 * (sources is EVERY)
        done, parts = place.executions()[0], place.running().counts.parts
        assert done.results == results
        assert done.details.get("poison_records", []) == []
        assert 1 < parts - before <= 3 * results * 1_100 / 200_000 + 12
        before = parts


@pytest.mark.parametrize("limits", [ExecutionLimits(parts=PartLimits(progress_s=0.0))], ids=["at once"])
def test_parts_are_counted_and_told_while_they_run(
    place: RunningChannelDataverse, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(place, OWN, NEW)
    subscribe(place, 1_000)
    place.write(report(1))
    running, counted = place.running(), []
    ask = running.context.runs.ask

    async def count(question: Callable[[], Any], what: str, **options: Any) -> Any:
        counted.append(running.counts.parts)
        return await ask(question, what, **options)

    monkeypatch.setattr(running.context.runs, "ask", count)
    with result_limit(spark, "300k"), capture_logs() as logs:
        place.execute()
    assert running.counts.parts > 3
    assert set(counted) == set(range(running.counts.parts)), "each part sees those before it"
    told = [line["event"] for line in logs if "in parts" in line["event"]]
    assert "running it in parts" in told[0]
    progress = [line for line in logs if line["event"] == "a channel's execution goes on in parts"]
    assert [line["parts"] for line in progress] == list(range(1, running.counts.parts + 1))
    assert [line["channel"] for line in progress] == ["c"] * running.counts.parts
    assert progress[0]["results"] == 0
    assert progress[-1]["results"] == 1_000


@pytest.mark.parametrize("limit", ["2m", "300k"], ids=["each payload once", "in parts, too"])
@pytest.mark.parametrize("sources", [NEW, EVERY], ids=["continuous", "repetitive"])
def test_a_hundred_reports_for_a_thousand_each_are_a_hundred_thousand_results_in_their_order(
    place: RunningChannelDataverse, spark: SparkSession, sources: str, limit: str
) -> None:
    for name in ("c", "whole"):
        create(place, SAME, sources, name)
    subscriptions, others = (subscribe(place, 1_000, name) for name in ("c", "whole"))
    place.write(*(report(i) for i in range(100)))
    place.execute("whole")
    with result_limit(spark, limit):
        place.execute()
    assert succeeded(place).results == succeeded(place, "whole").results == 100_000
    assert succeeded(place).details.get("poison_records", []) == []
    assert (place.running().counts.parts > 1) == (limit != "2m")
    for subscription, other in list(zip(subscriptions, others, strict=True))[::100]:
        assert place.told(subscription) == place.told(other, "whole")


def test_one_interest_alone_is_parted_by_its_records_in_their_order(
    place: RunningChannelDataverse, spark: SparkSession
) -> None:
    for name in ("c", "whole"):
        create(place, SAME, NEW, name)
    subscriptions, others = (subscribe(place, 2, name) for name in ("c", "whole"))
    place.write(*(report(i) for i in range(2_000)))
    place.execute("whole")
    with result_limit(spark, "1m"):
        place.execute()
    assert succeeded(place).details.get("poison_records", []) == []
    for subscription, other in zip(subscriptions, others, strict=True):
        assert place.told(subscription) == place.told(other, "whole")
        assert len(place.told(subscription)) == 2_000
    parts = place.running().counts.parts
    place.write(*(report(i) for i in range(2_000, 4_000)))
    with result_limit(spark, "1m"):
        place.execute()
    assert succeeded(place).results == 4_000
    assert place.running().counts.parts - parts < parts, "it begins with parts of the size that passed"


def test_what_is_grouped_is_parted_by_interests_only(place: RunningChannelDataverse, spark: SparkSession) -> None:
    place.run("""
        CREATE CONTINUOUS CHANNEL c(k, who) PERIOD duration("P1D") {
            SELECT count(*) AS n, max(d.said) AS said FROM D d
            WHERE is_new(d) AND d.kind = k AND d.n < who GROUP BY who
        };
    """)
    subscriptions = subscribe(place, 4_000)
    place.write(*(report(i) for i in range(3)))
    with result_limit(spark, "2m"):
        place.execute()
    assert succeeded(place).results == 4_000
    assert [result["n"] for result in place.told(subscriptions[77])] == [3]
    assert place.running().counts.parts > 1


def test_only_an_interest_with_a_record_that_no_room_is_enough_for_is_set_aside(
    place: RunningChannelDataverse, spark: SparkSession
) -> None:
    create(place, "d.id, repeat(d.said, d.n * (who - 9)) AS said", NEW)
    subscriptions = subscribe(place, 4)
    place.write(report(1), report(2, n=9), report(3))
    # The last one's result of the second report is 4 × 9 KB.
    with result_limit(spark, "34k"), capture_logs() as logs:
        place.execute()
    (said,) = [line for line in logs if line["event"] == "a channel set records or interests aside"]
    assert (said["key"], said["count"]) == (["2"], 1)
    done = succeeded(place)
    (poison_record,) = done.details["poison_records"]
    interests = [held.interest for held in place.subscriptions() if held.id == subscriptions[-1]]
    assert (poison_record["dataset"], poison_record["key"], [poison_record["interest"]]) == (
        f"{place.dataverse}.D",
        ["2"],
        interests,
    )
    assert "larger" in poison_record["reason"]
    assert place.running().counts.poison_records == 1
    for subscription in subscriptions:
        wanted = [1, 3] if subscription == subscriptions[-1] else [1, 2, 3]
        assert sorted(result["id"] for result in place.told(subscription)) == wanted


def test_a_poisonous_record_is_found_also_where_there_is_no_room_for_the_whole(
    place: RunningChannelDataverse, spark: SparkSession
) -> None:
    create(place, f"{OWN}, 6 div (d.n - 5) AS q", NEW)
    subscriptions = subscribe(place, 600)
    place.write(*(report(i, n=5 if i == 3 else 1) for i in range(8)))
    with result_limit(spark, "2m"):
        place.execute()
    done = succeeded(place)
    assert [(poison_record["key"], poison_record["interest"]) for poison_record in done.details["poison_records"]] == [
        (["3"], None)
    ]
    assert done.results == 600 * 7
    assert sorted(result["id"] for result in place.told(subscriptions[5])) == [0, 1, 2, 4, 5, 6, 7]


MODULE = """
import time

def slow(who):
    if who == 17:
        time.sleep(1_000)
    return who
"""


@pytest.mark.parametrize("limits", [ExecutionLimits(deadline_s=8.0)], ids=["8 s"])
def test_an_interest_that_makes_its_execution_overrun_is_set_aside_and_others_are_told(
    place: RunningChannelDataverse, tmp_path: Path
) -> None:
    module = Modules(tmp_path / "python")
    module.write(MODULE)
    place.run(f'CREATE FUNCTION slow(n) RETURNS bigint LANGUAGE PYTHON AS "{module.name}:slow";')
    create(place, "d.id, slow(who) AS who", NEW)
    subscriptions = subscribe(place, 12)
    place.write(report(1))
    place.execute()
    done = succeeded(place)
    (poison_record,) = done.details["poison_records"]
    assert poison_record["interest"] == next(
        held.interest for held in place.subscriptions() if held.id == subscriptions[7]
    )
    assert (poison_record["dataset"], poison_record["key"]) == (f"{place.dataverse}.D", ["1"])
    assert done.results == 11
    assert [len(place.told(subscription)) for subscription in subscriptions] == [1] * 7 + [0] + [1] * 4


DEADLY = """
import os

def deadly(n):
    if n == 7:
        os._exit(3)
    return n
"""


def create_deadly(place: RunningChannelDataverse, folder: Path, argument: str) -> None:
    module = Modules(folder)
    module.write(DEADLY)
    place.run(f'CREATE FUNCTION deadly(n) RETURNS bigint LANGUAGE PYTHON AS "{module.name}:deadly";')
    create(place, f"d.id, who, deadly({argument}) AS n", NEW)


def poison_pairs(place: RunningChannelDataverse) -> list[tuple[str, Any]]:
    found = succeeded(place).details.get("poison_records", [])
    return sorted((poison_record["key"][0], poison_record["interest"]) for poison_record in found)


@pytest.mark.parametrize("limits", [ExecutionLimits()], ids=["as usual"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_record_that_ends_its_worker_each_time_is_set_aside_alone(
    place: RunningChannelDataverse, tmp_path: Path, count: int
) -> None:
    create_deadly(place, tmp_path / "python", "d.n")
    subscriptions = subscribe(place, count)
    place.write(*(report(id_, n=7 if id_ == 5 else 1) for id_ in range(9)))
    with capture_logs() as logs:
        place.execute()
    assert not [line for line in logs if "search" in line["event"]], "no record is searched for"
    interests = [held.interest for held in place.subscriptions()]
    assert poison_pairs(place) == [("5", interest) for interest in sorted(interests)]
    assert "ended its process" in succeeded(place).details["poison_records"][0]["reason"]
    for subscription in subscriptions:
        assert sorted(result["id"] for result in place.told(subscription)) == [0, 1, 2, 3, 4, 6, 7, 8]
    place.write(report(20))
    place.execute()
    assert [len(place.told(subscription)) for subscription in subscriptions] == [9] * count


LOW = ExecutionLimits(parts=PartLimits(lethal_interests_to_workers=2))


@pytest.mark.parametrize("limits", [LOW], ids=["lethal with two"])
def test_a_record_that_ends_workers_with_everybody_is_set_aside_for_all_and_no_interest_is_blamed(
    place: RunningChannelDataverse, tmp_path: Path
) -> None:
    create_deadly(place, tmp_path / "python", "d.n")
    subscriptions = subscribe(place, 40)
    place.write(*(report(id_, n=7 if id_ == 1 else 1) for id_ in range(3)))
    place.execute()
    assert {key for key, _ in poison_pairs(place)} == {"1"}
    assert [len(place.told(subscription)) for subscription in subscriptions] == [2] * 40
    parts = place.running().counts.parts
    assert parts < 40
    place.write(report(9))
    place.execute()
    assert [len(place.told(subscription)) for subscription in subscriptions] == [3] * 40
    assert place.running().counts.parts - parts < 10, "the interests run together again"


def test_results_that_do_not_fit_into_the_engine_arrive_in_parts(place: RunningChannelDataverse) -> None:
    """The text of a result is far larger than its record; 300 MB do not fit into a heap of 1 GB with all copies."""
    create(place, "d.id, repeat(d.kind, 100000) AS said", NEW)
    (subscription,) = subscribe(place, 1)
    place.write(*({**report(id_), "said": ""} for id_ in range(3_000)))
    with capture_logs() as logs:
        place.execute()
    assert not [line for line in logs if "search" in line["event"]], "no record is to blame"
    assert succeeded(place).results == 3_000
    assert "poison_records" not in succeeded(place).details
    assert place.running().counts.parts > 1
    assert not [line for line in logs if "was not done within" in str(line)], "no query has waited for ever"
    assert [result["id"] for result in place.told(subscription)] == list(range(3_000))


class LosingRuns:
    """Executions of a channel that lose the engine with some of the answers that they would have."""

    def __init__(self, place: RunningChannelDataverse, is_lost: Callable[[bytes], bool]) -> None:
        self._runs = place.running().context.runs
        self._ask = self._runs.ask
        self._what = f"channel {place.running().entry.name}"
        self._is_lost = is_lost
        self.lost_alone: list[bool] = []

    async def ask(self, question: Callable[[], Any], what: str, *, alone: bool = False, **options: Any) -> Any:
        answer = await self._ask(question, what, alone=alone, **options)
        if what == self._what and isinstance(answer, ExecutionResults) and any(map(self._is_lost, answer.texts)):
            self.lost_alone.append(alone)
            raise engine_lost()
        return answer


def test_an_interest_with_a_record_that_ends_the_engine_each_time_is_set_aside_and_others_are_told(
    place: RunningChannelDataverse, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(place, OWN, NEW)
    subscriptions = subscribe(place, 12)
    place.write(*(report(id_) for id_ in range(5)))
    runs = LosingRuns(place, lambda text: b'"id":3,' in text and b'"who":17}' in text)
    monkeypatch.setattr(place.running().context.runs, "ask", runs.ask)
    with pytest.raises(EngineLostError):
        place.execute()
    place.execute()
    done = place.executions()[0]
    (poison_record,) = done.details["poison_records"]
    assert poison_record["interest"] == next(
        held.interest for held in place.subscriptions() if held.id == subscriptions[7]
    )
    assert (poison_record["dataset"], poison_record["key"]) == (f"{place.dataverse}.D", ["3"])
    assert "engine was lost" in poison_record["reason"]
    assert runs.lost_alone[:2] == [False, False]
    assert all(runs.lost_alone[2:]), "from the second loss on nothing else runs beside"
    for subscription in subscriptions:
        wanted = [0, 1, 2, 4] if subscription == subscriptions[7] else [0, 1, 2, 3, 4]
        assert sorted(result["id"] for result in place.told(subscription)) == wanted
    place.write(report(9))
    place.execute()
    assert [len(place.told(subscription)) for subscription in subscriptions] == [6] * 7 + [5] + [6] * 4


@pytest.mark.parametrize("limits", [ExecutionLimits(interests=FEW_CACHED)], ids=["few cached"])
@pytest.mark.parametrize("lack", [engine_lost, lambda: CapacityError("no memory")], ids=["lost", "no memory"])
def test_an_execution_whose_interests_cannot_be_handed_over_at_once_ends(
    place: RunningChannelDataverse, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, lack: Callable[[], Exception]
) -> None:
    failed: list[object] = []

    def fail(frame: object) -> None:
        failed.append(frame)
        raise lack()

    monkeypatch.setattr(type(spark.range(1)), "cache", fail)
    create(place, OWN, NEW)
    subscriptions = subscribe(place, 12)
    place.write(report(1), report(2))
    place.execute()
    assert [len(place.told(subscription)) for subscription in subscriptions] == [2] * 12
    assert "poison_records" not in succeeded(place).details
    tries = len(failed)
    assert tries >= 2 * FEW_CACHED.most_failures
    subscribe(place, 14)
    place.write(report(3))
    place.execute()
    assert [len(place.told(subscription)) for subscription in subscriptions] == [3] * 12
    assert len(failed) == tries, "from then on each part brings its own"


def test_a_lost_engine_is_given_the_interests_before_the_next_part_is_asked(
    place: RunningChannelDataverse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that no record is to blame for what the interests take."""
    create(place, OWN, NEW)
    subscriptions = subscribe(place, 12)
    place.write(*(report(id_) for id_ in range(5)))
    runs = LosingRuns(place, lambda text: b'"id":3,' in text and b'"who":17}' in text)
    asked: list[object] = []

    async def ask(question: Callable[[], Any], what: str, **options: Any) -> Any:
        try:
            answer = await runs.ask(question, what, **options)
        except EngineLostError:
            asked.append("lost")
            raise
        if answer is None or isinstance(answer, ExecutionResults):  # else it is a probe, or records are read
            asked.append("handed over" if answer is None else "answered")
        return answer

    monkeypatch.setattr(place.running().context.runs, "ask", ask)
    with pytest.raises(EngineLostError):
        place.execute()
    place.execute()
    assert [len(place.told(subscription)) for subscription in subscriptions] == [5] * 7 + [4] + [5] * 4
    after_loss = [asked[place + 1] for place, what in enumerate(asked[:-1]) if what == "lost"]
    assert set(after_loss[1:]) == {"handed over"}


def test_an_engine_that_something_else_has_ended_costs_nobody_a_result(
    place: RunningChannelDataverse, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(place, OWN, NEW)
    subscriptions = subscribe(place, 3)
    place.write(report(1))
    runs = LosingRuns(place, lambda _text: not runs.lost_alone)
    monkeypatch.setattr(place.running().context.runs, "ask", runs.ask)
    with pytest.raises(EngineLostError):
        place.execute()
    place.execute()
    assert [len(place.told(subscription)) for subscription in subscriptions] == [1, 1, 1]
    assert "poison_records" not in place.executions()[0].details
    assert place.running().counts.parts == 0


def test_an_interest_that_matches_too_much_loses_its_own_oldest_and_nobody_elses(
    spark: SparkSession, tmp_path: Path
) -> None:
    cluster = LocalCluster(spark, tmp_path, cluster={"channels": {"matches_limit": 10}})
    try:
        place = RunningChannelDataverse(cluster, "Default")
        place.run(SETUP)
        create(place, SAME, NEW)
        wanted = [SubscriptionRequest(["a", least], application=f"app{least}") for least in (1_000, 8)]
        wide, narrow = place.subscribe_all(*wanted)
        place.write(*(report(id_, n=id_) for id_ in range(50)))
        place.execute()
        assert place.executions()[0].results == 10 + 8
        assert sorted(result["id"] for result in place.told(narrow.id)) == list(range(8))
        assert sorted(result["id"] for result in place.told(wide.id)) == list(range(40, 50))
        counts = place.running().counts
        assert (counts.results, counts.left_out) == (18, 40)
        gaps = place.wait(gaps_of(place, wide.id, narrow.id))
        assert [gap is not None for gap in gaps] == [True, False]
    finally:
        cluster.close()


async def gaps_of(place: RunningChannelDataverse, *subscriptions: str) -> list[object]:
    """What each of them is told to have missed."""
    store, gaps = place.parts.channel_store, []
    for id_ in subscriptions:
        subscription = await store.subscription(place.running().entry.channel_id, id_)
        assert subscription is not None
        parts = [
            part async for chunk in store.fetch([Range(subscription.interest, subscription.since)]) for part in chunk
        ]
        gaps.append(next((part.gap for part in parts if part.gap is not None), None))
    return gaps
