"""Channels in trouble: poisonous records, failing queries, slow executions; nobody else notices."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from tests.integration.cluster.channels.test_executions import FEED
from tests.support.in_process_cluster import LocalCluster
from tests.support.running_channels import OF_KIND, SETUP, WITHIN_S, RunningChannelDataverse, record
from tests.support.waiting import wait_until
from tocsin.cluster.channels.executions.execution import ChannelExecution
from tocsin.cluster.channels.executions.limits import ExecutionLimits
from tocsin.cluster.channels.executions.poison_search import PoisonSearch
from tocsin.cluster.channels.executions.running_channel import RunningChannel
from tocsin.pipeline.channels.interests import InterestLimits
from tocsin.wire.errors import StatementError

INVERSE = "CREATE CONTINUOUS CHANNEL p(k) { SELECT VALUE 6 div d.n FROM D d WHERE is_new(d) AND d.kind = k };"


LIMITS = ExecutionLimits(last_retry_s=0.05)


@pytest.fixture(scope="module")
def cluster(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Channels that fail are tried again soon."""
    with closing(LocalCluster(spark, tmp_path_factory.mktemp("cluster"), limits=LIMITS)) as made:
        yield made


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


class Before:
    """Something that is done before each execution of one channel, on its thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, channel: RunningChannel, what: Callable[[], None]) -> None:
        execute = ChannelExecution.execute
        self.calls = 0

        def patched(execution: ChannelExecution, *args: Any) -> Any:
            if execution.channel is channel:
                self.calls += 1
                what()
            return execute(execution, *args)

        monkeypatch.setattr(ChannelExecution, "execute", patched)


@pytest.mark.parametrize(
    "words",
    [
        "SparkContext was shut down",
        "java.lang.OutOfMemoryError: Java heap space",
        "java.io.IOException: No space left on device",
    ],
)
def test_whatever_words_a_poisonous_record_holds_it_alone_is_set_aside(
    place: RunningChannelDataverse, words: str
) -> None:
    place.run("CREATE CONTINUOUS CHANNEL p(k) { SELECT VALUE d.id FROM D d WHERE is_new(d) AND bigint(d.kind) > k };")
    mine = [place.subscribe(str(k), channel="p") for k in range(5)]
    place.write(record(1, kind="7"), record(2, kind=words), record(3, kind="9"))
    place.caught_up("p")
    assert [sorted(place.told(subscription, "p")) for subscription in mine] == [[1, 3]] * 5
    (poison_record,) = [poison for run in place.executions("p") for poison in run.details.get("poison_records", [])]
    assert poison_record["key"] == ["2"]
    with pytest.raises(StatementError):
        place.run(f'SELECT VALUE bigint("{words}")')


@pytest.mark.parametrize("together", [True, False], ids=["in one commit", "each by itself"])
def test_a_poisonous_record_is_named_and_set_aside_and_the_others_are_answered(
    place: RunningChannelDataverse, together: bool
) -> None:
    place.run(INVERSE)
    mine = place.subscribe('"a"', channel="p")
    records = [record(i, n=(0 if i in (3, 8) else i + 1)) for i in range(9)]
    if together:
        place.write(*records)
    else:
        for item in records[:5]:
            place.write(item)
            place.caught_up("p")
        records = records[:5]
    place.caught_up("p")
    assert sorted(place.told(mine, "p")) == sorted(6 // item["n"] for item in records if item["n"])
    poison_records = [poison for run in place.executions("p") for poison in run.details.get("poison_records", [])]
    bad = [item["id"] for item in records if not item["n"]]
    assert sorted(int(poison["key"][0]) for poison in poison_records) == bad
    assert {poison["dataset"] for poison in poison_records} == {f"{place.dataverse}.D"}
    assert all("zero" in poison["reason"] for poison in poison_records)
    assert place.running("p").counts.poison_records == len(bad)
    # It goes on.
    place.write(record(50, n=2))
    place.caught_up("p")
    assert place.told(mine, "p")[-1] == 3
    assert place.running("p").trouble is None


def test_a_poisonous_record_of_one_of_two_datasets_doubles_nothing(place: RunningChannelDataverse) -> None:
    place.run("""
        CREATE CONTINUOUS CHANNEL p(k) PERIOD duration("P1D") {
            SELECT VALUE [d.id, e.id, 6 div d.n] FROM D d, E e
            WHERE (is_new(d) OR is_new(e)) AND d.at = e.at AND d.kind = k
        };
    """)
    mine = place.subscribe('"a"', channel="p")
    place.write(record(1, n=1), record(2, n=2))
    place.write(record(1), dataset="E")
    place.execute("p")
    place.write(record(3, n=0), record(4, n=3), record(5, n=6))
    place.write(record(2), record(3), dataset="E")
    place.execute("p")
    wanted = [[d, e, 6 // d_n] for d, d_n in ((1, 1), (2, 2), (4, 3), (5, 6)) for e in (1, 2, 3)]
    assert sorted(place.told(mine, "p")) == sorted(wanted)
    (poison_record,) = place.executions("p")[0].details["poison_records"]
    assert poison_record["key"] == ["3"]


def test_a_poisonous_record_among_grouped_ones_leaves_whole_groups(place: RunningChannelDataverse) -> None:
    place.run("""
        CREATE CONTINUOUS CHANNEL p(k) PERIOD duration("P1D") {
            SELECT VALUE sum(6 div d.n) FROM D d WHERE is_new(d) AND d.kind = k GROUP BY k
        };
    """)
    mine = place.subscribe('"a"', channel="p")
    place.write(*(record(i, n=i) for i in range(4)))
    place.execute("p")
    assert place.told(mine, "p") == [6 + 3 + 2]


def test_a_query_that_always_fails_is_tried_again_and_reported_and_others_go_on(
    place: RunningChannelDataverse, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.run(f"{OF_KIND} CREATE CONTINUOUS CHANNEL p(k) {{ SELECT VALUE d.id FROM D d WHERE is_new(d) "
              "AND 6 div (d.n - d.n) > 0 AND d.kind = k };")  # fmt: skip
    good, bad = place.subscribe('"a"'), place.subscribe('"a"', channel="p")
    before = place.state("p").vector
    place.write(*(record(i, n=1) for i in range(20)))
    wait_until(lambda: place.running("p").counts.failures > 1, "it is tried again", WITHIN_S)
    place.told_once(good, range(20))
    assert "zero" in (place.running("p").trouble or "")
    assert place.running("p").counts.failing > 1
    assert place.running("c").counts.failing == 0
    assert place.state("p").vector == before, "no record is to blame, and none is passed over"
    failures = [execution for execution in place.executions("p") if execution.reason is not None]
    assert all("zero" in str(failure.reason) and failure.number == 2 for failure in failures)
    assert place.told(bad, "p") == []
    # It can be dropped while it fails.
    place.run("DROP CHANNEL p")


@pytest.mark.parametrize(("again_s", "told"), [(0.0, [1, 2, 3]), (600.0, [1])], ids=["told again", "told once"])
def test_an_execution_that_failed_for_a_while_is_made_up_for(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again_s: float, told: list[int]
) -> None:
    with closing(LocalCluster(spark, tmp_path, limits=replace(LIMITS, log_again_s=again_s))) as cluster:
        _fail_for_a_while(placed(cluster, "Default"), monkeypatch, told)


def _fail_for_a_while(place: RunningChannelDataverse, monkeypatch: pytest.MonkeyPatch, told: list[int]) -> None:
    place.run(OF_KIND)
    mine = place.subscribe('"a"')
    left = [3]

    def fail() -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError("the machine is tired")

    Before(monkeypatch, place.running("c"), fail)
    with capture_logs() as logged:
        for i in range(3):
            place.write(record(i))
        place.told_once(mine, range(3))
        wait_until(lambda: not place.running().counts.failing, "it knows that it goes on", WITHIN_S)
    assert place.running().counts.failures == 3
    own = [item for item in logged if item.get("channel") == "c"]
    assert [item["failures_in_a_row"] for item in own if item["log_level"] == "warning"] == told
    assert [item["failures_before"] for item in own if item["log_level"] == "info"] == [3]
    assert [execution.reason for execution in place.executions() if execution.reason] == [
        "OSError: the machine is tired"
    ] * 3


def test_a_stuck_channel_holds_up_neither_feeds_nor_other_channels_and_can_be_dropped(
    place: RunningChannelDataverse, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.run(OF_KIND + OF_KIND.replace("c(k)", "stuck(k)") + FEED)
    mine, _ = place.subscribe('"a"'), place.subscribe('"a"', channel="stuck")
    inside, go_on = threading.Event(), threading.Event()

    def block() -> None:
        inside.set()
        assert go_on.wait(WITHIN_S)

    Before(monkeypatch, place.running("stuck"), block)
    place.send(record(1))
    assert inside.wait(WITHIN_S)
    for i in range(2, 6):
        place.send(record(i))
    place.told_once(mine, range(1, 6))
    before = place.state("stuck")
    assert before.last_execution == 1
    # What it finds after it was told to end is not kept.
    store, channel_id = place.parts.channel_store, before.channel_id
    kept: list[int] = []
    commit = store.commit_execution

    async def committing(channel: int, *args: Any) -> Any:
        kept.append(channel)
        return await commit(channel, *args)

    monkeypatch.setattr(store, "commit_execution", committing)
    threading.Timer(0.3, go_on.set).start()
    place.run("DROP CHANNEL stuck")
    assert channel_id not in kept
    assert channel_id not in place.wait(store.channel_ids())


def test_an_overrun_is_followed_at_once_and_missed_ticks_are_counted(
    place: RunningChannelDataverse, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.run("""
        CREATE FUNCTION f(k) { SELECT VALUE d.id FROM D d WHERE d.kind = k };
        CREATE REPETITIVE CHANNEL c USING f@1 PERIOD duration("PT0.1S")
    """)
    channel = place.running()
    place.subscribe('"a"')
    missed: list[int] = []

    def slow() -> None:
        begun = channel.counts.missed_ticks
        missed.append(begun)
        threading.Event().wait(0.35)

    patched = Before(monkeypatch, place.running("c"), slow)
    wait_until(lambda: patched.calls > 4, "it runs on", WITHIN_S)
    place.run("DROP CHANNEL c")
    assert missed[-1] >= 2 * (len(missed) - 2), "each run takes longer than three periods"


def test_spark_errors_of_a_culprit_name_no_innards(place: RunningChannelDataverse) -> None:
    place.run(INVERSE)
    place.subscribe('"a"', channel="p")
    place.write(record(1, n=0))
    place.caught_up("p")
    (poison_record,) = place.executions("p")[0].details["poison_records"]
    assert "org.apache" not in poison_record["reason"]
    assert isinstance(poison_record["reason"], str)
    with pytest.raises(StatementError):
        place.rows("SELECT VALUE 6 div d.n FROM D d")


@pytest.mark.parametrize("others", [2, 6], ids=["among few", "among many"])
def test_parameters_that_nobody_thought_of_silence_nobody_else(place: RunningChannelDataverse, others: int) -> None:
    place.run("""
        CREATE CONTINUOUS CHANNEL p(n: bigint, by: bigint) PERIOD duration("P1D") {
            SELECT VALUE [d.id, d.n * by] FROM D d WHERE is_new(d) AND d.at = n
        };
    """)
    good = [place.subscribe("0", str(1000 + i), channel="p") for i in range(others)]
    # For the first one record is impossible, for the second all are.
    partly, bad = (place.subscribe(at, str(2**62), channel="p") for at in "01")
    ids = {subscription.id: subscription.interest for subscription in place.subscriptions("p")}
    place.write(*(record(i, n=i) for i in range(3)))
    place.execute("p")
    place.write(*(record(i, n=5, at=1.0) for i in (8, 9)))
    place.execute("p")
    for i, item in enumerate(good):
        assert sorted(place.told(item, "p")) == [[n, n * (1000 + i)] for n in range(3)]
    assert sorted(place.told(partly, "p")) == [[0, 0], [1, 2**62]]
    assert place.told(bad, "p") == []
    last, before, _ = place.executions("p")
    named = [
        [(poison["interest"], poison["dataset"], poison["key"]) for poison in run.details["poison_records"]]
        for run in (before, last)
    ]
    assert named == [[(ids[partly], f"{place.dataverse}.D", ["2"])], [(ids[bad], "", [str(ids[bad])])]]
    shown = place.rows(
        "SELECT VALUE c FROM Metadata.ChannelExecution e UNNEST e.PoisonRecords c "
        f"WHERE e.DataverseName = '{place.dataverse}' AND e.Execution = 2"
    )
    assert [(item["Interest"], item["Dataset"], item["Key"]) for item in shown] == named[0]


POINTS = """
CREATE TYPE P AS { id: int, n: bigint, at: point, long: duration, more: { x: int } };
CREATE ACTIVE DATASET G(P) PRIMARY KEY id;
CREATE CONTINUOUS CHANNEL p(k: bigint) PERIOD duration("P1D") {
    SELECT VALUE [g.id, 6 div g.n] FROM G g WHERE is_new(g) AND g.id > k
};
"""


def _point(id_: int, n: int) -> str:
    return f'{{"id": {id_}, "n": {n}, "at": create_point(1.0, 2.0), "long": duration("PT1S"), "more": {{"x": {id_}}}}}'


@pytest.mark.parametrize("several", [False, True], ids=["alone", "two and no good one"])
def test_poisonous_records_without_a_good_one_beside_them_are_set_aside_whatever_their_type(
    place: RunningChannelDataverse, several: bool
) -> None:
    place.run(POINTS)
    mine, other = place.subscribe("0", channel="p"), place.subscribe("-1", channel="p")
    bad = [1, 2] if several else [1]
    place.run(f"INSERT INTO G [{', '.join(_point(item, 0) for item in bad)}]")
    place.execute("p")
    place.run(f"INSERT INTO G [{_point(8, 3)}]")
    place.execute("p")
    assert place.told(mine, "p") == place.told(other, "p") == [[8, 2]]
    last, before, _ = place.executions("p")
    named = [(poison["dataset"], poison["key"], poison["interest"]) for poison in before.details["poison_records"]]
    assert named == [(f"{place.dataverse}.G", [str(item)], None) for item in bad]
    assert "poison_records" not in last.details


def test_a_bad_interest_goes_without_and_that_it_is_looked_for_is_told_at_once(
    place: RunningChannelDataverse, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.run(POINTS.replace("(k: bigint)", "(k)").replace("g.id > k", "g.n = CAST(to_number(k, '99') AS BIGINT)"))
    _bad, good = place.subscribe('"x"', channel="p"), place.subscribe('"3"', channel="p")
    place.run(f"INSERT INTO G [{_point(1, 3)}, {_point(2, 2)}]")
    search, counts = PoisonSearch.without_poison, place.running("p").counts
    meanwhile = []

    def searched(*args: Any) -> Any:
        meanwhile.append((counts.failing, [item["event"] for item in logged]))
        return search(*args)

    monkeypatch.setattr(PoisonSearch, "without_poison", searched)
    with capture_logs() as logged:
        place.execute("p")
    assert place.told(good, "p") == [[1, 2]]
    assert meanwhile == [(1, ["a channel's execution failed; searching for poison records"])]
    assert counts.failing == 0


CAST = """
CREATE CONTINUOUS CHANNEL p(k) PERIOD duration("P1D") {
    SELECT VALUE d.id FROM D d WHERE is_new(d) AND d.n = CAST(to_number(k, '99') AS BIGINT)
};
"""


@pytest.mark.parametrize(
    ("count", "limits"),
    [(2, None), (7, replace(LIMITS, interests=InterestLimits(cached_from=3)))],  # the second as with thousands
    ids=["two of five", "most of many"],
)
def test_bad_interests_silence_no_good_one_however_many_they_are(place: RunningChannelDataverse, count: int) -> None:
    place.run(CAST)
    wanted = {}
    for i in range(count):
        place.subscribe(f'"x{i}"', channel="p")
        if i in (0, count - 1):
            wanted[i] = place.subscribe(f'"{i}"', channel="p")
    wanted[50] = place.subscribe('"50"', channel="p")
    good = {subscription.interest for subscription in place.subscriptions("p") if subscription.id in wanted.values()}
    bad = {subscription.interest for subscription in place.subscriptions("p")} - good
    for i, n in enumerate(wanted):
        place.write(record(i, n=n))
        place.execute("p")
    for i, n in enumerate(wanted):
        assert place.told(wanted[n], "p") == [i]
    for run in place.executions("p")[:-1]:
        assert {(poison["dataset"], poison["interest"]) for poison in run.details["poison_records"]} == {
            ("", item) for item in bad
        }
    # After two failures nobody asks them for a while.
    assert [poison["known"] for poison in place.executions("p")[0].details["poison_records"]] == [True] * count
    assert place.running("p").counts.poison_records == 2 * count
    shown = place.rows(
        "SELECT VALUE e.InterestsAside FROM Metadata.ChannelExecution e "
        f"WHERE e.DataverseName = '{place.dataverse}' ORDER BY e.Execution"
    )
    assert shown == [0, count, count, count]


def test_a_poisonous_record_beside_bad_interests_is_set_aside_too(place: RunningChannelDataverse) -> None:
    place.run("""
        CREATE CONTINUOUS CHANNEL p(k) PERIOD duration("P1D") {
            SELECT VALUE d.id FROM D d WHERE is_new(d) AND 6 div d.n = CAST(to_number(k, '99') AS BIGINT)
        };
    """)
    for text in "xy":
        place.subscribe(f'"{text}"', channel="p")
    good = [place.subscribe(f'"{n}"', channel="p") for n in (3, 2)]
    place.write(record(1, n=0), record(2, n=2), record(3, n=3))
    place.execute("p")
    assert [place.told(subscription, "p") for subscription in good] == [[2], [3]]
    poison_records = place.executions("p")[0].details["poison_records"]
    assert [poison["key"] for poison in poison_records if poison["dataset"]] == [["1"]]
    assert len(poison_records) == 3


def test_two_poisonous_records_for_everybody_hold_up_nobody(place: RunningChannelDataverse) -> None:
    place.run(INVERSE)
    mine = place.subscribe('"a"', channel="p")
    place.write(record(1, n=0), record(2, n=0))
    place.caught_up("p")
    place.write(record(3, n=3))
    place.told_once(mine, [2], "p")
    assert place.running("p").counts.failures == 0
    assert [poison["key"] for poison in place.executions("p")[1].details["poison_records"]] == [["1"], ["2"]]


def test_a_record_that_fails_only_with_what_it_is_compared_to_is_set_aside(place: RunningChannelDataverse) -> None:
    # Spark puts the record's text where the parameter is, as they are equal.
    place.run("""
        CREATE CONTINUOUS CHANNEL p(k) PERIOD duration("P1D") {
            SELECT VALUE d.id FROM D d WHERE is_new(d) AND d.kind = k AND d.n = CAST(to_number(k, '99') AS BIGINT)
        };
    """)
    mine = place.subscribe('"1"', channel="p")
    place.write(record(1, kind="a", n=1), record(2, kind="1", n=1))
    place.execute("p")
    place.write(record(3, kind="1", n=1))
    place.execute("p")
    assert place.told(mine, "p") == [2, 3]
