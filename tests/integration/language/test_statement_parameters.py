"""Statement parameters, `$name` and `?`: values that a request gives, never a part of a statement."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.in_process_cluster import LocalCluster
from tocsin.cluster.statements.outcomes import ScriptOptions
from tocsin.wire.errors import InputError, NotFoundError, StatementError, TocsinError

HOSTILE = "x' OR 1 = 1; DROP DATAVERSE Default; -- \" ` \\ \n ${env} $y"


@pytest.fixture
def place(cluster: LocalCluster, dataverse: str) -> str:
    cluster.run(
        f"""USE {dataverse}; CREATE TYPE T AS OPEN {{ id: bigint, said: string }};
        CREATE DATASET D(T) PRIMARY KEY id; INSERT INTO D [{{"id": 1, "said": "a"}}, {{"id": 2, "said": "b"}}]"""
    )
    return dataverse


def rows(cluster: LocalCluster, dataverse: str, script: str, **values: Any) -> Any:
    given = {f"${name.removeprefix('p')}": value for name, value in values.items()}
    return cluster.run(script, options=ScriptOptions(dataverse=dataverse, values=given))[-1].rows


@pytest.mark.parametrize(
    "value", [1, -5, 2.5, True, None, "text", HOSTILE, "", [1, "a", None], {"a": {"b": [1]}, "c": HOSTILE}, []]
)
def test_a_value_of_any_type_is_itself(cluster: LocalCluster, place: str, value: Any) -> None:
    assert rows(cluster, place, "SELECT VALUE [$x];", x=value) == [[value]]


def test_names_numbers_and_question_marks_are_bound(cluster: LocalCluster, place: str) -> None:
    query = "SELECT VALUE d.id FROM D d WHERE d.id >= $least AND d.said = $1 AND d.id < $2.most"
    assert rows(cluster, place, query, least=1, p1="b", p2={"most": 9}) == [2]
    assert rows(cluster, place, "SELECT VALUE d.id FROM D d WHERE d.said = ? AND d.id = ?", p1="a", p2=1) == [1]
    assert rows(cluster, place, "SELECT VALUE x FROM $list AS x", list=[3, 4]) == [3, 4]


def test_a_hostile_value_finds_nothing_and_changes_nothing(cluster: LocalCluster, place: str) -> None:
    assert rows(cluster, place, "SELECT VALUE d FROM D d WHERE d.said = $said", said=HOSTILE) == []
    rows(cluster, place, "INSERT INTO D {'id': 3, 'said': $said, 'more': $more}", said=HOSTILE, more={"x": HOSTILE})
    found = rows(cluster, place, "SELECT VALUE d FROM D d WHERE d.said = $said", said=HOSTILE)
    assert found == [{"id": 3, "said": HOSTILE, "more": {"x": HOSTILE}}]
    rows(cluster, place, "DELETE FROM D d WHERE d.said = $said", said=HOSTILE)
    assert len(rows(cluster, place, "SELECT VALUE d FROM D d")) == 2


def test_arguments_of_procedures_may_be_parameters(cluster: LocalCluster, place: str) -> None:
    cluster.run(f"USE {place}; CREATE PROCEDURE said(a) {{ SELECT VALUE d.id FROM D d WHERE d.said = a }};")
    assert rows(cluster, place, "EXECUTE said($said)", said="b") == [2]
    assert rows(cluster, place, "EXECUTE said(?)", p1=HOSTILE) == []


@pytest.mark.parametrize(
    "script",
    [
        "SELECT VALUE $missing",
        "SELECT VALUE d FROM D d WHERE d.said = $missing",
        "SELECT VALUE ?",
        "CREATE FUNCTION f(a) { a + $x }",
        "CREATE FUNCTION f(a) { SELECT VALUE d FROM D d WHERE d.id = $x }",
        "CREATE PROCEDURE p() { DELETE FROM D d WHERE d.id = $x }",
    ],
)
def test_a_parameter_without_a_value_and_one_that_would_be_stored_are_refused(
    cluster: LocalCluster, place: str, script: str
) -> None:
    with pytest.raises(StatementError, match="has no value"):
        rows(cluster, place, script, x=1)


@pytest.mark.parametrize(
    "script", ["SELECT VALUE d FROM $x d", "USE $x", "CREATE DATASET $x(T) PRIMARY KEY id", "SELECT VALUE D.$x FROM D"]
)
def test_a_parameter_is_no_name(cluster: LocalCluster, place: str, script: str) -> None:
    with pytest.raises(TocsinError):
        rows(cluster, place, script, x="D")


def test_a_request_may_only_read_or_have_one_statement(cluster: LocalCluster, place: str) -> None:
    reads = ScriptOptions(dataverse=place, is_read_only=True)
    assert len(cluster.run("SELECT VALUE d FROM D d", options=reads)) == 1
    with pytest.raises(InputError, match="may only read"):
        cluster.run("DELETE FROM D", options=reads)
    single = ScriptOptions(is_single=True)
    assert cluster.run(f"USE {place}; SELECT VALUE count(*) FROM D d", options=single)[-1].rows == [2]
    with pytest.raises(InputError, match="one statement"):
        cluster.run(f"USE {place}; DELETE FROM D; SELECT VALUE 1", options=single)
    assert cluster.rows(f"SELECT VALUE count(*) FROM {place}.D d") == [2]
    with pytest.raises(NotFoundError):
        cluster.run("SELECT VALUE 1", options=ScriptOptions(dataverse="nowhere"))
