"""Procedures and brokers in a whole cluster: made, run with arguments that are data, run by themselves, and gone."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.feeds_in_process import FeedDataverse
from tests.support.in_process_cluster import LocalCluster
from tests.support.waiting import wait_until
from tocsin.cluster.channels.announcements.brokers import check_url
from tocsin.cluster.statements.procedures import RUNS_KEPT
from tocsin.wire.errors import ConflictError, InputError, NotFoundError, StatementError, TocsinError

SETUP = """
CREATE TYPE T AS { id: int, said: string };
CREATE DATASET D(T) PRIMARY KEY id;
"""


@pytest.fixture
def place(cluster: LocalCluster, dataverse: str) -> FeedDataverse:
    made = FeedDataverse(cluster, dataverse)
    made.run(SETUP)
    return made


def refused(what: Callable[[], object], kind: type[TocsinError], said: str) -> TocsinError:
    with pytest.raises(kind) as raised:
        what()
    assert said in f"{raised.value.message} {raised.value.hint or ''}"
    return raised.value


# ---------------------------------------------------------------- EXECUTE


def test_a_procedure_changes_data_with_its_arguments(place: FeedDataverse) -> None:
    place.run(
        """CREATE PROCEDURE put(id, said) { UPSERT INTO D {"id": id, "said": said} };
        CREATE PROCEDURE add(more) { INSERT INTO D more };
        CREATE PROCEDURE forget(id) { DELETE FROM D d WHERE d.id = id };
        CREATE PROCEDURE copy(by) { INSERT INTO D (SELECT d.id + by AS id, d.said AS said FROM D d) };
        CREATE PROCEDURE clear() { DELETE FROM D }"""
    )
    assert place.run('EXECUTE put(1, "a")')[0]["upserted"] == 1
    place.run('EXECUTE put(1, "b"); EXECUTE put(2, upper("c"))')
    assert place.held() == {1: "b", 2: "C"}
    place.run('EXECUTE add([{"id": 3, "said": "d"}, {"id": 4, "said": "e"}]); EXECUTE add({"id": 5, "said": "f"})')
    assert place.run("EXECUTE forget(4)")[0]["deleted"] == 1
    assert place.run("EXECUTE copy(10)")[0]["inserted"] == 4
    assert place.held() == {1: "b", 2: "C", 3: "d", 5: "f", 11: "b", 12: "C", 13: "d", 15: "f"}
    assert place.run("EXECUTE clear()")[0]["deleted"] == 8
    assert place.held() == {}


ODD = ["'); DROP DATASET D; --", '" OR 1 = 1', "a\\b'c", "${spark.app.name}", "é\n\t\0x", "{{ d.id }}", "`id`", ""]


def test_an_argument_is_data_and_never_read_as_a_statement(place: FeedDataverse) -> None:
    place.run("CREATE PROCEDURE put(id, said) { INSERT INTO D {'id': id, 'said': said} }")
    place.run("CREATE PROCEDURE those(said) { SELECT VALUE d.id FROM D d WHERE d.said = said }")
    written = [json.dumps(said, ensure_ascii=False) for said in ODD]
    place.run(";".join(f"EXECUTE put({i}, {said})" for i, said in enumerate(written)))
    assert place.held() == dict(enumerate(ODD))
    assert [place.rows(f"EXECUTE those({said})") for said in written] == [[i] for i in range(len(ODD))]


def test_values_of_every_type_come_through(place: FeedDataverse) -> None:
    values = {
        "9223372036854775807": 9223372036854775807,
        "-0.5": -0.5,
        "true": True,
        "null": None,
        '"x"': "x",
        'point("1.0,2.0")': [1.0, 2.0],
        'datetime("2026-11-15T08:30:00Z")': "2026-11-15T08:30:00Z",
        'duration("P1DT2H")': "P1DT2H",
        'uuid("5c848e5c-6b6a-498f-8452-8847a2957421")': "5c848e5c-6b6a-498f-8452-8847a2957421",
        "[1, 2.5, [3]]": [1, 2.5, [3]],
        '{"a": {"b": point("1.0,2.0")}}': {"a": {"b": [1.0, 2.0]}},
        "1 + 1": 2,
        "(SELECT VALUE x FROM [1, 2] x)": [1, 2],
    }
    place.run("CREATE PROCEDURE same(x) { SELECT VALUE x }")
    assert {argument: place.rows(f"EXECUTE same({argument})") for argument in values} == {
        argument: [answer] for argument, answer in values.items()
    }


def test_a_query_answers_its_rows_streamed_or_whole(cluster: LocalCluster, place: FeedDataverse) -> None:
    place.run(
        """INSERT INTO D [{"id": 1, "said": "a"}, {"id": 2, "said": "b"}, {"id": 3, "said": "b"}];
        CREATE PROCEDURE those(said) { SELECT VALUE d.id FROM D d WHERE d.said = said ORDER BY d.id }"""
    )
    for stream in (False, True):
        assert cluster.rows(f"USE {place.dataverse}; EXECUTE those('b')", stream=stream) == [2, 3]
    assert place.rows("EXECUTE those(upper('x'))") == []


def test_names_in_a_body_are_those_of_its_dataverse(cluster: LocalCluster, place: FeedDataverse) -> None:
    place.run("CREATE FUNCTION two() { 2 }; CREATE PROCEDURE put(id) { INSERT INTO D {'id': id + two(), 'said': ''} }")
    cluster.run(f"EXECUTE {place.dataverse}.put(1)")
    assert place.held() == {3: ""}


def test_a_failed_run_changes_nothing_and_is_told_of_the_procedure(place: FeedDataverse) -> None:
    place.run("CREATE PROCEDURE put(rows) { INSERT INTO D rows }; CREATE PROCEDURE rest(x) { SELECT VALUE mod(1, x) }")
    refused(lambda: place.run("EXECUTE put([{'id': 1, 'said': 'a'}, {'id': 1, 'said': 'b'}])"), ConflictError, "1")
    error = refused(lambda: place.run("\n  EXECUTE put({'id': 1})"), StatementError, "said")
    assert (error.line, error.statement) == (2, 2)
    assert place.held() == {}
    error = refused(lambda: place.rows("EXECUTE rest(point('1,2'))"), StatementError, "in procedure rest: ")
    assert (error.line, error.statement) == (1, 2)
    refused(lambda: place.run("EXECUTE put()"), NotFoundError, "it takes 1 arguments, not 0")
    refused(lambda: place.run("EXECUTE putt(1)"), NotFoundError, "did you mean put?")
    refused(lambda: place.run("EXECUTE put(nothing)"), StatementError, "nothing")


# ---------------------------------------------------------------- CREATE, DROP


def test_a_body_that_means_nothing_is_refused_when_it_is_made(place: FeedDataverse) -> None:
    wrong: list[tuple[str, type[TocsinError], str]] = [
        ("INSERT INTO E {'id': 1}", NotFoundError, "there is no dataset"),
        ("DELETE FROM D d WHERE nobody(d.id) = x", StatementError, "nobody"),
        ("SELECT VALUE y", StatementError, "y"),
        ("SELECT VALUE d FROM E d", StatementError, "unknown dataset E"),
        ("SELECT VALUE nobody(x)", StatementError, "nobody"),
        ("INSERT INTO Metadata.Dataset {'a': 1}", ConflictError, "Metadata"),
    ]
    for body, kind, said in wrong:
        script = f"\nCREATE PROCEDURE p(x) {{ {body} }}"
        assert refused(lambda text=script: place.run(text), kind, said).line == 2  # type: ignore[misc]
    refused(lambda: place.run("EXECUTE p(1)"), NotFoundError, "there is no procedure")


def test_what_is_there_is_not_made_again_and_what_is_not_there_is_not_dropped(place: FeedDataverse) -> None:
    place.run("CREATE PROCEDURE p() { SELECT 1 }; CREATE PROCEDURE p(a) { SELECT VALUE a }")
    refused(lambda: place.run("CREATE PROCEDURE p() { SELECT 2 }"), ConflictError, "exists already")
    assert place.run("CREATE PROCEDURE p() IF NOT EXISTS { SELECT 2 }") == [{"name": "p", "existed": True}]
    refused(lambda: place.run("DROP PROCEDURE p"), StatementError, "there are several procedures p")
    place.run("DROP PROCEDURE p@1; DROP PROCEDURE p")
    refused(lambda: place.run("DROP PROCEDURE p"), NotFoundError, "there is no procedure")
    assert place.run("DROP PROCEDURE p IF EXISTS") == [{"name": "p", "existed": False}]


def test_what_a_procedure_uses_is_not_dropped(place: FeedDataverse) -> None:
    place.run(
        """CREATE FUNCTION f(x) { x }; CREATE DATASET E(T) PRIMARY KEY id;
        CREATE PROCEDURE p(x) { INSERT INTO D (SELECT VALUE f(e) FROM E e) }"""
    )
    for statement in ("DROP DATASET D", "DROP DATASET E", "DROP FUNCTION f@1"):
        refused(lambda text=statement: place.run(text), ConflictError, "used by procedure")  # type: ignore[misc]
    place.run("DROP PROCEDURE p; DROP DATASET D; DROP DATASET E; DROP FUNCTION f@1")


def test_metadata_shows_procedures_and_brokers(place: FeedDataverse) -> None:
    place.run(
        """CREATE PROCEDURE p(x) { SELECT VALUE x }; CREATE PROCEDURE q() { DELETE FROM D } PERIOD duration("P1D");
        CREATE BROKER b AT "http://broker.example:1/x" """
    )
    wanted = f"WHERE one.DataverseName = '{place.dataverse}'"
    assert place.rows(
        f"SELECT one.ProcedureName, one.Arity, one.Params, one.Duration FROM Metadata.Procedure one {wanted}"
        " ORDER BY one.ProcedureName"
    ) == [
        {"ProcedureName": "p", "Arity": "1", "Params": ["x"], "Duration": ""},
        {"ProcedureName": "q", "Arity": "0", "Params": [], "Duration": "P1D"},
    ]
    assert place.rows(f"SELECT one.BrokerName, one.BrokerEndPoint FROM Metadata.Broker one {wanted}") == [
        {"BrokerName": "b", "BrokerEndPoint": "http://broker.example:1/x"}
    ]


# ---------------------------------------------------------------- PERIOD

EACH = """CREATE PROCEDURE each() {
  INSERT INTO D {"id": unix_millis(current_datetime()), "said": string(current_datetime())}
} PERIOD "PT0.2S"; EXECUTE each() """


def test_a_procedure_with_a_period_runs_at_its_ticks_from_its_execution_until_it_is_dropped(
    place: FeedDataverse,
) -> None:
    place.run(EACH)
    wait_until(lambda: len(place.held()) >= 3, "its ticks write")
    place.run("DROP PROCEDURE each")
    stopped = place.held()
    instants = sorted(stopped)
    # Every run had the instant of its tick: whole periods lie between them, however late it came.
    assert {(after - before) % 200 for before, after in itertools.pairwise(instants)} <= {0, 1, 199}
    place.run("CREATE PROCEDURE other() { UPSERT INTO D {'id': 0, 'said': ''} } PERIOD 'PT0.1S'; EXECUTE other()")
    wait_until(lambda: 0 in place.held(), "its ticks write")
    assert place.held() == {**stopped, 0: ""}


def test_a_procedure_with_a_period_and_parameters_runs_for_each_list_of_arguments(place: FeedDataverse) -> None:
    place.run(
        """CREATE PROCEDURE note(id, said) { UPSERT INTO D {"id": id, "said": said} } PERIOD "PT0.1S";
        EXECUTE note(1, "a'; DROP DATASET D"); EXECUTE note(1 + 1, upper("b"))"""
    )
    wait_until(lambda: place.held() == {1: "a'; DROP DATASET D", 2: "B"}, "both schedules write")
    schedules = f"SELECT VALUE p.Schedules FROM Metadata.Procedure p WHERE p.DataverseName = '{place.dataverse}'"
    (listed,) = place.rows(schedules)
    assert [schedule["Arguments"] for schedule in listed] == [[1, "a'; DROP DATASET D"], [2, "B"]]
    runs = f"SELECT VALUE e.Arguments FROM Metadata.ProcedureExecution e WHERE e.DataverseName = '{place.dataverse}'"
    wait_until(lambda: [2, "B"] in place.rows(runs), "its runs are listed")
    place.run("DROP PROCEDURE note; DELETE FROM D")
    assert place.rows(schedules) == []
    assert place.held() == {}


def test_a_failing_tick_is_tried_again_at_the_next(place: FeedDataverse) -> None:
    place.run(
        """INSERT INTO D {"id": 1, "said": "in the way"};
        CREATE PROCEDURE p() { INSERT INTO D {"id": 1, "said": "made it"} } PERIOD "PT0.1S";
        CREATE PROCEDURE q() { SELECT VALUE count(*) FROM D } PERIOD "PT0.1S";
        CREATE PROCEDURE r() { UPSERT INTO D {"id": 2, "said": "goes on"} } PERIOD "PT0.1S";
        EXECUTE p(); EXECUTE q(); EXECUTE r()"""
    )
    wait_until(lambda: 2 in place.held(), "its ticks write")
    place.run("DELETE FROM D WHERE id = 1")
    wait_until(lambda: place.held().get(1) == "made it", "its ticks write")

    def runs() -> list[list[object]]:
        return place.rows(
            "SELECT VALUE [e.Reason, e.Tick <= e.Started AND e.Started <= e.Ended, e.MissedTicks >= 0]"
            f" FROM Metadata.ProcedureExecution e WHERE e.DataverseName = '{place.dataverse}' AND e.ProcedureName = 'p'"
        )

    wait_until(lambda: [None, True, True] in runs(), "a run that succeeded is shown")
    reason = "the key id = 1 is in the dataset already (UPSERT replaces; nothing was inserted)"
    assert [reason, True, True] in runs()
    assert len(runs()) <= RUNS_KEPT


def test_dropping_the_dataverse_stops_its_procedures(cluster: LocalCluster, place: FeedDataverse) -> None:
    place.run(EACH)
    wait_until(lambda: len(place.held()) >= 1, "its ticks write")
    cluster.run(f"DROP DATAVERSE {place.dataverse}")
    assert not [
        procedure for procedure in cluster.cluster.catalog.catalog.procedures if procedure.dataverse == place.dataverse
    ]
    assert not [task for task in cluster.wait(_tasks()) if task == "procedure each"]


async def _tasks() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks()]


def test_procedures_go_on_after_a_restart_and_make_up_for_one_missed_tick(spark: SparkSession, tmp_path: Path) -> None:
    first = LocalCluster(spark, tmp_path)
    place = FeedDataverse(first, "Default")
    place.run(SETUP + EACH)
    place.run(
        "CREATE PROCEDURE daily() { UPSERT INTO D {'id': 0, 'said': 'daily'} } PERIOD 'P1D'; EXECUTE daily();"
        "CREATE PROCEDURE put(id) { UPSERT INTO D {'id': id, 'said': 'put'} }"
    )
    wait_until(lambda: len(place.held()) >= 1, "its ticks write")
    first.close()
    second = LocalCluster(spark, tmp_path)
    try:
        place = FeedDataverse(second, "Default")
        before = place.held()
        wait_until(lambda: len(place.held()) > len(before), "its ticks write")
        assert 0 not in place.held()
        place.run("EXECUTE put(7); DROP PROCEDURE each")
        assert place.held().get(7) == "put"
    finally:
        second.close()


# ---------------------------------------------------------------- brokers


def test_a_broker_lives_from_create_to_drop(place: FeedDataverse) -> None:
    assert place.run('CREATE BROKER b AT "http://broker.example:8989/x"') == [{"name": "b"}]
    refused(lambda: place.run('CREATE BROKER b AT "http://other"'), ConflictError, "exists already")
    assert place.run('CREATE BROKER b IF NOT EXISTS AT "http://other"') == [{"name": "b", "existed": True}]
    place.run("DROP BROKER b")
    refused(lambda: place.run("DROP BROKER b"), NotFoundError, "there is no broker")
    assert place.run("DROP BROKER b IF EXISTS") == [{"name": "b", "existed": False}]


def test_an_address_to_which_nothing_can_be_sent_is_refused() -> None:
    for url in ("", "broker", "ftp://broker", "http://", "http://b:x", "http://a b", "http://me:secret@broker"):
        refused(lambda text=url: check_url(text), InputError, "a broker's address")  # type: ignore[misc]
    assert check_url("https://[::1]:8989/a?b=c") == "https://[::1]:8989/a?b=c"
