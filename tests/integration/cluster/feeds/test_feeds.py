"""Feeds in a whole cluster: their statements, what they accept and refuse, and where it lands."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.support.feeds_in_process import FeedDataverse
from tests.support.in_process_cluster import LocalCluster, held_until
from tocsin.cluster.engine.engine import Engine
from tocsin.cluster.feeds.limits import FeedLimits
from tocsin.wire.errors import ConflictError, InputError, NotFoundError, ReusedKeyError, StoreError, TocsinError

SETUP = "CREATE TYPE T AS { id: int, said: string }; CREATE DATASET D(T) PRIMARY KEY id"
HTTP = '{"adapter-name": "http_adapter", "type-name": "T"}'


@pytest.fixture
def place(cluster: LocalCluster, dataverse: str) -> FeedDataverse:
    made = FeedDataverse(cluster, dataverse)
    made.run(SETUP)
    return made


@pytest.fixture
def fed(place: FeedDataverse) -> FeedDataverse:
    """With a feed F that is started and goes to D."""
    place.run(f"CREATE FEED F WITH {HTTP}; CONNECT FEED F TO DATASET D; START FEED F")
    return place


def refused(what: Callable[[], object], kind: type[TocsinError], said: str) -> None:
    with pytest.raises(kind) as raised:
        what()
    assert said in f"{raised.value.message} {raised.value.hint or ''}"


# ---------------------------------------------------------------- statements


def test_a_feed_lives_from_create_to_drop(place: FeedDataverse) -> None:
    place.run(f"CREATE FEED F WITH {HTTP}; CONNECT FEED F TO DATASET D; START FEED F")
    assert place.send({"id": 1, "said": "a"}).answer == {"accepted": 1, "rejected": []}
    place.run("STOP FEED F")
    refused(lambda: place.send({"id": 2, "said": "b"}), ConflictError, "is stopped")
    place.run("START FEED F")
    place.send({"id": 3, "said": "c"})
    place.run("STOP FEED F; DISCONNECT FEED F FROM DATASET D; DROP FEED F")
    refused(lambda: place.send({"id": 4, "said": "d"}), NotFoundError, "there is no feed")
    assert place.held() == {1: "a", 3: "c"}
    # Nothing of it is left in the way of another one.
    place.run(f"CREATE FEED F WITH {HTTP}; DROP FEED F; DROP DATASET D; DROP TYPE T")


def test_what_is_there_is_not_made_again_and_what_is_not_there_is_not_dropped(place: FeedDataverse) -> None:
    place.run(f"CREATE FEED F WITH {HTTP}")
    said = f"the feed {place.dataverse}.F exists already CREATE FEED … IF NOT EXISTS"
    refused(lambda: place.run(f"CREATE FEED F WITH {HTTP}"), ConflictError, said)
    assert place.run(f"CREATE FEED F IF NOT EXISTS WITH {HTTP}") == [{"name": "F", "existed": True}]
    place.run("DROP FEED F")
    refused(lambda: place.run("DROP FEED F"), NotFoundError, "there is no feed")
    assert place.run("DROP FEED F IF EXISTS") == [{"name": "F", "existed": False}]


@pytest.mark.parametrize(
    ("statement", "kind", "said"),
    [
        ("CONNECT FEED G TO DATASET D", NotFoundError, "there is no feed"),
        ("CONNECT FEED F TO DATASET E", NotFoundError, "there is no dataset"),
        ("CONNECT FEED F TO DATASET D APPLY FUNCTION g", NotFoundError, "there is no function"),
        ("DISCONNECT FEED F FROM DATASET D", NotFoundError, "is not connected"),
        ("START FEED F", ConflictError, "is connected to no dataset"),
        ("START FEED G", NotFoundError, "there is no feed"),
        ("STOP FEED G", NotFoundError, "there is no feed"),
        ("CONNECT FEED F TO DATASET D; CONNECT FEED F TO DATASET D", ConflictError, "already"),
        ("CREATE FEED H WITH {}", InputError, "adapter-name: must be one of"),
        ('CREATE FEED H WITH {"adapter-name": "http", "type-name": "U"}', NotFoundError, "there is no type"),
        ('CREATE FEED H WITH {"adapter-name": "http", "type-name": "T", "hue": "red"}', InputError, "option hue"),
        (
            'CREATE FEED H WITH {"adapter-name": "http", "type-name": "T", "format": "csv", "delimiter": "long"}',
            InputError,
            "the delimiter must be one character",
        ),
    ],
)
def test_a_statement_that_makes_no_sense_says_why_and_changes_nothing(
    place: FeedDataverse, statement: str, kind: type[TocsinError], said: str
) -> None:
    place.run(f"CREATE FEED F WITH {HTTP}")
    refused(lambda: place.run(statement), kind, said)
    place.run("DROP FEED H IF EXISTS; DROP FEED F; DROP DATASET D; DROP TYPE T")


@pytest.mark.parametrize("what", ["TYPE T", "DATASET D", "DATASET FRejected", "FUNCTION g@1"])
def test_what_a_feed_uses_cannot_be_dropped(place: FeedDataverse, what: str) -> None:
    place.run(f"CREATE FUNCTION g(r) {{ r }}; CREATE FEED F WITH {HTTP}")
    place.run("CONNECT FEED F TO DATASET D APPLY FUNCTION g")
    refused(lambda: place.run(f"DROP {what}"), ConflictError, "is used by")


def test_starting_what_is_started_and_stopping_what_is_stopped_changes_nothing(fed: FeedDataverse) -> None:
    assert fed.run("START FEED F") == [{"name": "F", "already": True}]
    fed.run("STOP FEED F; STOP FEED F; START FEED F")
    fed.send({"id": 1, "said": "a"})
    assert fed.held() == {1: "a"}


def test_a_dataverse_goes_with_its_started_feeds(cluster: LocalCluster, fed: FeedDataverse) -> None:
    fed.send({"id": 1, "said": "a"})
    intake = cluster.settings.data / "intake"
    (entry,) = (feed for feed in cluster.cluster.catalog.catalog.feeds if feed.dataverse == fed.dataverse)
    assert (intake / entry.folder).exists()
    cluster.run(f"DROP DATAVERSE {fed.dataverse}")
    assert not (intake / entry.folder).exists()
    refused(lambda: fed.send({"id": 2, "said": "b"}), NotFoundError, "there is no feed")


def test_connections_made_at_the_same_time_are_all_there(cluster: LocalCluster, place: FeedDataverse) -> None:
    place.run(f"CREATE DATASET E(T) PRIMARY KEY id; CREATE FEED F WITH {HTTP}")

    async def connect(dataset: str) -> None:
        script = f"USE {place.dataverse}; CONNECT FEED F TO DATASET {dataset}"
        async for _ in cluster.cluster.statements.run(script, stream=False):
            pass

    async def both() -> None:
        await asyncio.gather(connect("D"), connect("E"))

    cluster.wait(both())
    place.run("START FEED F")
    place.send({"id": 1, "said": "a"})
    assert place.held("D") == place.held("E") == {1: "a"}


# ---------------------------------------------------------------- records


def test_the_last_record_with_a_key_wins(fed: FeedDataverse) -> None:
    fed.send({"id": 1, "said": "a"}, {"id": 2, "said": "a"}, {"id": 1, "said": "b"})
    assert fed.held() == {1: "b", 2: "a"}
    fed.send({"id": 2, "said": "c"})
    assert fed.held() == {1: "b", 2: "c"}


def test_refused_records_are_kept_with_field_and_reason_and_their_neighbours_pass(fed: FeedDataverse) -> None:
    accepted = fed.send({"id": 1, "said": "a"}, {"id": "x", "said": "b"}, {"id": 3}, {"id": 4, "said": "d"})
    assert accepted.status == 200
    assert accepted.answer["accepted"] == 2
    assert [(rejection["index"], rejection["field"]) for rejection in accepted.answer["rejected"]] == [
        (1, "id"),
        (2, "said"),
    ]
    assert fed.held() == {1: "a", 4: "d"}
    kept = fed.rejected()
    assert [(rejection["field"], json.loads(rejection["record"])) for rejection in kept] == [
        ("id", {"id": "x", "said": "b"}),
        ("said", {"id": 3}),
    ]
    assert [rejection["reason"] for rejection in kept] == [
        rejection["reason"] for rejection in accepted.answer["rejected"]
    ]


def test_when_nothing_was_accepted_the_answer_says_so(fed: FeedDataverse) -> None:
    accepted = fed.send({"id": "x", "said": "b"})
    assert (accepted.status, accepted.answer["accepted"]) == (422, 0)
    assert fed.held() == {}
    assert len(fed.rejected()) == 1


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"nonsense"])
def test_what_holds_no_record_is_an_error_and_changes_nothing(fed: FeedDataverse, body: bytes) -> None:
    refused(lambda: fed.send(body), InputError, "the body")
    assert (fed.held(), fed.rejected()) == ({}, [])


def test_no_record_at_all_is_none_accepted(fed: FeedDataverse) -> None:
    sent = fed.send(b"[]")
    assert (sent.status, sent.answer) == (422, {"accepted": 0, "rejected": []})


def test_the_same_idempotency_key_counts_once_also_for_generated_keys(place: FeedDataverse) -> None:
    place.run("CREATE TYPE S AS { said: string }; CREATE TYPE K AS { key: uuid, said: string }")
    place.run("CREATE DATASET E(K) PRIMARY KEY key AUTOGENERATED")
    place.run('CREATE FEED F WITH {"adapter-name": "http_adapter", "type-name": "S"}')
    place.run("CONNECT FEED F TO DATASET E; START FEED F")
    first = place.send({"said": "a"}, {"said": 1}, key="k")
    again = place.send({"said": "a"}, {"said": 1}, key="k")
    assert (again.status, again.answer) == (first.status, first.answer)
    place.run("STOP FEED F; START FEED F")
    assert place.send({"said": "a"}, {"said": 1}, key="k").answer == first.answer
    refused(lambda: place.send({"said": "another"}, key="k"), ReusedKeyError, "with another body")
    place.send({"said": "a"}, key="l")
    assert place.rows("SELECT VALUE e.said FROM E e") == ["a", "a"]


def test_several_feeds_go_into_one_dataset(fed: FeedDataverse) -> None:
    fed.run('CREATE FEED G WITH {"adapter-name": "http_adapter", "type-name": "T", "format": "csv"}')
    fed.run("CONNECT FEED G TO DATASET D; START FEED G")
    fed.send({"id": 1, "said": "a"}, {"id": 2, "said": "a"})
    fed.send(b"id,said\n2,b\n3,b\n", feed="G")
    assert fed.held() == {1: "a", 2: "b", 3: "b"}


def test_one_feed_goes_into_several_datasets_each_from_when_it_was_connected(fed: FeedDataverse) -> None:
    fed.run("CREATE DATASET E(T) PRIMARY KEY id")
    fed.send({"id": 1, "said": "a"})
    fed.run("CONNECT FEED F TO DATASET E")
    fed.send({"id": 2, "said": "b"})
    fed.run("DISCONNECT FEED F FROM DATASET D")
    fed.send({"id": 3, "said": "c"})
    fed.run("CONNECT FEED F TO DATASET D")
    fed.send({"id": 4, "said": "d"})
    assert fed.held("D") == {1: "a", 2: "b", 4: "d"}
    assert fed.held("E") == {2: "b", 3: "c", 4: "d"}


def test_a_record_that_does_not_fit_one_dataset_is_set_aside_for_that_one(place: FeedDataverse) -> None:
    place.run("CREATE TYPE C AS CLOSED { id: int, said: string }; CREATE DATASET E(C) PRIMARY KEY id")
    place.run(f"CREATE FEED F WITH {HTTP}; CONNECT FEED F TO DATASET D; CONNECT FEED F TO DATASET E; START FEED F")
    place.send({"id": 1, "said": "a"}, {"id": 2, "said": "b", "more": 1})
    assert place.held("D") == {1: "a", 2: "b"}
    assert place.held("E") == {1: "a"}
    (kept,) = place.rejected()
    assert (kept["dataset"], kept["field"]) == (f"{place.dataverse}.E", "more")
    assert json.loads(kept["record"]) == {"id": 2, "said": "b", "more": 1}


def test_stopping_lands_all_that_was_acknowledged(cluster: LocalCluster, fed: FeedDataverse) -> None:
    feeds, name = cluster.cluster.feeds, f"{fed.dataverse}.F"

    async def many() -> list[int]:
        """Requests and the end of the feed at the same time: each was acknowledged or refused."""

        async def one(number: int) -> list[int]:
            try:
                await feeds.accept(name, json.dumps({"id": number, "said": "a"}).encode(), None, visible=False)
            except ConflictError:
                return []
            return [number]

        async def stop() -> list[int]:
            async for _ in cluster.cluster.statements.run(f"STOP FEED {name}", stream=False):
                pass
            return []

        told = await asyncio.gather(*map(one, range(20)), stop(), *map(one, range(20, 40)))
        return [number for each in told for number in each]

    acknowledged = cluster.wait(many())
    assert len(acknowledged) >= 20
    assert sorted(fed.held()) == sorted(acknowledged)


# ---------------------------------------------------------------- functions


def connected(place: FeedDataverse, function: str) -> FeedDataverse:
    place.run(f"{function}; CREATE FEED F WITH {HTTP}; CONNECT FEED F TO DATASET D APPLY FUNCTION g; START FEED F")
    return place


def test_a_function_enriches_from_a_dataset_whose_changes_count_for_the_next_batch(place: FeedDataverse) -> None:
    place.run('CREATE DATASET Names(T) PRIMARY KEY id; UPSERT INTO Names [{"id": 1, "said": "one"}]')
    connected(
        place,
        """CREATE FUNCTION g(r) {
            {"id": r.id, "said": r.said, "names": (SELECT VALUE n.said FROM Names n WHERE n.id = r.id)}
        }""",
    )
    place.send({"id": 1, "said": "a"}, {"id": 2, "said": "b"})
    assert place.rows("SELECT VALUE d.names FROM D d ORDER BY d.id") == [["one"], []]
    place.run('UPSERT INTO Names [{"id": 2, "said": "two"}]')
    place.send({"id": 2, "said": "b"})
    assert place.rows("SELECT VALUE d.names FROM D d ORDER BY d.id") == [["one"], ["two"]]


def test_the_last_record_with_a_key_wins_also_behind_a_function_that_joins(place: FeedDataverse) -> None:
    named = ", ".join(f'{{"id": {i}, "said": "n{i}"}}' for i in range(50))
    place.run(f"CREATE DATASET Names(T) PRIMARY KEY id; UPSERT INTO Names [{named}]")
    connected(
        place,
        """CREATE FUNCTION g(r) {
            {"id": r.id, "said": r.said, "names": (SELECT VALUE n.said FROM Names n WHERE n.id = r.of)}
        }""",
    )
    place.send(*({"id": i % 3, "said": str(i), "of": (i * 7) % 50} for i in range(300)))
    assert place.held() == {0: "297", 1: "298", 2: "299"}


def test_a_function_drops_records_and_makes_several_of_one(place: FeedDataverse) -> None:
    connected(
        place,
        """CREATE FUNCTION g(r) {
            CASE WHEN r.id = 1 THEN [] WHEN r.id = 2 THEN [r, {"id": 20, "said": "made"}] ELSE [r] END
        }""",
    )
    place.send(*({"id": number, "said": "a"} for number in range(4)))
    assert place.held() == {0: "a", 2: "a", 20: "made", 3: "a"}


def test_null_from_a_function_drops_the_record(place: FeedDataverse) -> None:
    connected(place, "CREATE FUNCTION g(r) { CASE WHEN r.id = 1 THEN r ELSE NULL END }")
    place.send({"id": 1, "said": "a"}, {"id": 2, "said": "b"})
    assert (place.held(), place.rejected()) == ({1: "a"}, [])


def test_a_record_on_which_the_function_fails_is_set_aside_alone(place: FeedDataverse) -> None:
    connected(place, 'CREATE FUNCTION g(r) { {"id": r.id, "said": string(int(r.said))} }')
    place.send(*({"id": number, "said": "7" if number != 5 else "x"} for number in range(4, 8)))
    assert place.held() == {4: "7", 6: "7", 7: "7"}
    kept = place.rejected()
    assert [json.loads(item["record"])["id"] for item in kept] == [5]
    assert kept[0]["dataset"] == f"{place.dataverse}.D"
    assert kept[0]["reason"]


@pytest.mark.parametrize(
    "function",
    [
        'CREATE FUNCTION g(r) { {"id": r.id, "said": string(int(r.said))} }',
        'CREATE FUNCTION g(r) { CASE WHEN r.said = "x" THEN raise_error("boom") ELSE {"id": r.id, "said": "7"} END }',
        """CREATE FUNCTION g(r) { {"id": r.id, "said": string(int(r.said)),
            "more": (SELECT VALUE e.said FROM E e WHERE e.id = r.id)} }""",
    ],
)
def test_a_function_that_fails_on_many_records_is_asked_once_which(
    spark: SparkSession, tmp_path: Path, function: str
) -> None:
    asked: list[str] = []

    class CountingEngine(Engine):
        def rows(self, sql: str, limit: int | None = None) -> pa.Table:
            if threading.current_thread().name.startswith("landing"):
                asked.append(sql)
            return super().rows(sql, limit)

    cluster = LocalCluster(spark, tmp_path, feed_limits=FeedLimits(reasons=2), make_engine=CountingEngine)
    try:
        cluster.run("CREATE DATAVERSE v")
        place = FeedDataverse(cluster, "v")
        place.run(f"{SETUP}; CREATE DATASET E(T) PRIMARY KEY id")
        connected(place, function)
        place.send(*({"id": number, "said": "7" if number % 2 else "x"} for number in range(60)))
        assert place.held() == {number: "7" for number in range(60) if number % 2}
        assert len(place.rejected()) == 30
        # The batch, which of it, the good ones, and two for their reasons.
        assert len(asked) == 5
    finally:
        cluster.close()


def test_where_a_function_fails_within_a_subquery_its_neighbours_pass_all_the_same(place: FeedDataverse) -> None:
    place.run('CREATE DATASET E(T) PRIMARY KEY id; INSERT INTO E [{"id": 1, "said": "1"}, {"id": 2, "said": "x"}]')
    connected(
        place,
        """CREATE FUNCTION g(r) {
            {"id": r.id, "said": string(array_count((SELECT VALUE int(e.said) FROM E e WHERE int(e.said) > r.id)))}
        }""",
    )
    place.send({"id": 1, "said": "a"}, {"id": 2, "said": "b"})
    assert place.held() == {}
    assert len(place.rejected()) == 2


def test_what_a_function_makes_and_does_not_fit_is_kept_with_the_record_it_came_from(place: FeedDataverse) -> None:
    connected(place, 'CREATE FUNCTION g(r) { CASE WHEN r.id = 2 THEN NULL ELSE {"id": r.id, "said": r.of} END }')
    place.send(*({"id": number, "said": "a", "of": 1 if number in (3, 4) else "b"} for number in range(1, 6)))
    assert place.held() == {1: "b", 5: "b"}
    assert [(json.loads(rejection["record"])["id"], rejection["field"]) for rejection in place.rejected()] == [
        (3, "said"),
        (4, "said"),
    ]


# ---------------------------------------------------------------- beside statements


def test_neither_do_statements_keep_records_from_landing_nor_feeds_statements_from_running(
    cluster: LocalCluster, fed: FeedDataverse
) -> None:
    go = threading.Event()
    engine = cluster.cluster.engine
    many = cluster.settings.cluster.statements.concurrent + 10

    async def busy() -> list[asyncio.Future[bool]]:
        return [asyncio.ensure_future(engine.work(go.wait)) for _ in range(many)]

    async def ended(waiting: list[asyncio.Future[bool]]) -> None:
        await asyncio.gather(*waiting)

    waiting = cluster.wait(busy())
    try:
        fed.send({"id": 1, "said": "a"})
    finally:
        go.set()
        cluster.wait(ended(waiting))
    assert fed.held() == {1: "a"}

    go.clear()
    cluster.before_landing = held_until(go)
    for number in range(8):
        fed.run(f"CREATE FEED F{number} WITH {HTTP}; CONNECT FEED F{number} TO DATASET D; START FEED F{number}")
        name = f"{fed.dataverse}.F{number}"
        cluster.wait(cluster.cluster.feeds.accept(name, b'{"id": %d, "said": "b"}' % number, None, visible=False))
    assert fed.held() == {1: "a"}
    go.set()
    for number in range(8):
        fed.run(f"STOP FEED F{number}")
    assert fed.held() == dict.fromkeys(range(8), "b")


# ---------------------------------------------------------------- after a restart


def test_a_cluster_that_starts_again_goes_on_with_its_started_feeds(spark: SparkSession, tmp_path: Path) -> None:
    first = LocalCluster(spark, tmp_path)
    first.run("CREATE DATAVERSE v")
    before = FeedDataverse(first, "v")
    before.run("CREATE TYPE T AS { id: int, said: string }; CREATE DATASET D(T) PRIMARY KEY id")
    for feed in ("F", "G"):
        before.run(f"CREATE FEED {feed} WITH {HTTP}; CONNECT FEED {feed} TO DATASET D; START FEED {feed}")
    before.send({"id": 1, "said": "a"}, key="k")
    before.run("STOP FEED G")
    first.close()
    second = LocalCluster(spark, tmp_path)
    try:
        after = FeedDataverse(second, "v")
        after.send({"id": 1, "said": "b"})
        after.send({"id": 1, "said": "a"}, key="k")
        after.send({"id": 2, "said": "b"})
        assert after.held() == {1: "b", 2: "b"}
        refused(lambda: after.send({"id": 3, "said": "c"}, feed="G"), ConflictError, "is stopped")
    finally:
        second.close()


def test_a_feed_whose_log_is_gone_loses_nothing_that_comes_afterwards(
    fed: FeedDataverse, cluster: LocalCluster
) -> None:
    """An operator gives up what it held: the datasets are further than a log that would begin anew."""
    fed.send({"id": 1, "said": "a"}, {"id": 2, "said": "a"}, {"id": 3, "said": "a"})
    fed.run("STOP FEED F")
    (entry,) = (feed for feed in cluster.cluster.catalog.catalog.feeds if feed.dataverse == fed.dataverse)
    folder = cluster.settings.data / "intake" / entry.folder
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    with pytest.raises(StoreError, match="is gone"):
        fed.run("START FEED F")
    folder.mkdir()
    (folder / "begin-anew").touch()
    fed.run("START FEED F")
    fed.send({"id": 4, "said": "b"})
    assert fed.held() == {1: "a", 2: "a", 3: "a", 4: "b"}
