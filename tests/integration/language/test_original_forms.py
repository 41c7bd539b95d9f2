"""A script in the forms of the original language runs as it stands there, and its functions answer rightly.

The cluster's clock is held still, so that a report one second inside a window and one second outside of it can be told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.support.in_process_cluster import LocalCluster
from tests.support.literals import literal
from tocsin.rules.model.values import Circle, Point, datetime_text

NOW = datetime(2026, 11, 15, 8, 30, 0, 250_000, tzinfo=UTC)
SCRIPT = (Path(__file__).parents[2] / "support" / "original_forms.sql").read_text()


@dataclass(frozen=True)
class Report:
    message: str
    type: str
    age_s: float
    x: float
    y: float
    radius: float

    def touches(self, x: float, y: float) -> bool:
        return math.dist((self.x, self.y), (x, y)) <= self.radius

    def record(self) -> dict[str, Any]:
        return {
            "grade": 3,
            "waters": Circle(Point(self.x, self.y), self.radius),
            "delay": 0.5,
            "issuedAt": NOW - timedelta(seconds=self.age_s),
            "hours": 600.0,
            "wording": self.message,
            "hazard": self.type,
            "issuer": "the coast guard",
            "undeclared": {"source": ["radio", None]},
        }


REPORTS = [
    Report(f"{kind} {age:g}s at {x:g}", kind, age, x, 0.0, 2.0)
    for kind in ("squall", "fog")
    for age in (-5.0, 0.0, 9.999, 10.0, 10.001, 19.999, 20.0, 29.999, 30.0, 59.999, 60.0, 3_600.0)
    for x in (0.0, 10.0)
]
# (name, x, y, age): u1 in the zone at 0, u2 in the one at 10, u3 on the rim of the zone at 0, u4 in none, u5 too long
# ago, u6 was seen twice, once in each zone.
USERS = [
    ("u1", 1.0, 0.0, 1.0), ("u2", 10.0, 1.0, 9.999), ("u3", -2.0, 0.0, 0.0), ("u4", 5.0, 5.0, 0.0),
    ("u5", 1.0, 0.0, 10.0), ("u6", 0.5, 0.5, 1.0), ("u6", 10.5, 0.5, 2.0),
]  # fmt: skip
HAVENS = [("north", 0.0, 1.5), ("rim", 2.0, 0.0), ("east", 10.0, -1.0), ("far", 50.0, 50.0)]


def found(within_s: float, wanted: Callable[[Report], bool]) -> list[str]:
    return sorted(report.message for report in REPORTS if report.age_s < within_s and wanted(report))


def near(user: str) -> list[tuple[float, float]]:
    return [(x, y) for name, x, y, age in USERS if name == user and age < 10]


def seen_near(user: str, kind: str | None = None) -> list[str]:
    """One row per report and sighting."""
    return sorted(
        report.message
        for report in REPORTS
        for place in near(user)
        if report.age_s < 10 and kind in (None, report.type) and report.touches(*place)
    )


def havens_of(message: str) -> list[str]:
    (report,) = (report for report in REPORTS if report.message == message)
    return sorted(name for name, x, y in HAVENS if report.touches(x, y))


@pytest.fixture(scope="module")
def harbour(cluster: LocalCluster) -> Iterator[str]:
    """A dataverse in which the script ran and warnings, vessels and havens are placed."""
    name = f"harbour{uuid4().hex}"
    cluster.run(f"CREATE DATAVERSE {name}; USE {name}; {SCRIPT}")
    users = [
        {"east": x, "north": y, "vessel": who, "delay": 0.0, "seenAt": NOW - timedelta(seconds=age)}
        for who, x, y, age in USERS
    ]
    havens = [{"name": who, "mooring": Point(x, y), "berths": 12} for who, x, y in HAVENS]
    cluster.run(
        f"USE {name}; INSERT INTO Warnings {literal([report.record() for report in REPORTS])};"
        f"INSERT INTO Sightings {literal(users)}; INSERT INTO Havens ({literal(havens)});"
    )
    yield name
    cluster.run(f"DROP DATAVERSE {name}")


@pytest.fixture(autouse=True)
def _standing_clock(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "now", lambda: NOW)


def messages(rows: list[Any]) -> list[str]:
    return sorted(row["warning"]["wording"] for row in rows)


def assert_havens(rows: list[Any]) -> None:
    for row in rows:
        assert sorted(haven["name"] for haven in row["havens"]) == havens_of(row["warning"]["wording"])
        assert all(haven["berths"] == 12 for haven in row["havens"])


CALLS: list[tuple[str, list[str], bool]] = [
    ('warningsOf("squall")', found(10, lambda r: r.type == "squall"), False),
    ('warningsOf("ice")', [], False),
    ("warningsAt(2.0, 0)", found(20, lambda r: r.touches(2, 0)), False),
    ("warningsAt(5.0, 0.0)", [], False),
    ('warningsOfAt("fog", 10, 0.5)', found(30, lambda r: r.type == "fog" and r.touches(10, 0.5)), False),
    ('warningsOfAtWithHavens("squall", 0.0, 0.0)', found(60, lambda r: r.type == "squall" and r.touches(0, 0)), True),
    *((f'warningsAround("{user}")', seen_near(user), False) for user in ("u1", "u2", "u3", "u4", "u5", "u6")),
    ('warningsOfAround("fog", "u6")', seen_near("u6", "fog"), False),
    ('warningsOfAroundWithHavens("squall", "u3")', seen_near("u3", "squall"), True),
    ('warningsOfAroundWithHavens("squall", "u2")', seen_near("u2", "squall"), True),
]


@pytest.mark.parametrize(("call", "expected", "with_havens"), CALLS, ids=[call for call, _, _ in CALLS])
def test_each_function_answers_for_constants(
    cluster: LocalCluster, harbour: str, call: str, expected: list[str], with_havens: bool
) -> None:
    in_from = cluster.rows(f"USE {harbour}; SELECT VALUE f FROM {call} AS f;")
    (in_select,) = cluster.rows(f"USE {harbour}; SELECT VALUE {call};")
    alone = cluster.rows(f"USE {harbour}; {call};")
    for rows in (in_from, in_select, alone):
        assert messages(rows) == expected
        if with_havens:
            assert_havens(rows)


def test_a_report_comes_back_whole(cluster: LocalCluster, harbour: str) -> None:
    rows = cluster.rows(f"USE {harbour}; SELECT VALUE f.warning FROM warningsAt(0, 0) f")
    for row in rows:
        (report,) = (report for report in REPORTS if report.message == row["wording"])
        assert set(row) == {*report.record(), "warningId"}
        assert row["waters"] == {"center": [report.x, 0.0], "radius": 2.0}
        assert row["issuedAt"] == datetime_text(NOW - timedelta(seconds=report.age_s))
        assert row["undeclared"] == {"source": ["radio", None]}
        assert (row["grade"], row["hazard"], row["hours"]) == (3, report.type, 600.0)


def test_arguments_may_come_from_rows_in_from(cluster: LocalCluster, harbour: str) -> None:
    rows = cluster.rows(
        f"""USE {harbour};
        SELECT u.vessel AS who, f.warning.wording AS what, f.havens AS havens
        FROM Sightings u, warningsOfAtWithHavens("fog", u.east, u.north) f;"""
    )
    expected = [
        (who, report.message)
        for who, x, y, _ in USERS
        for report in REPORTS
        if report.type == "fog" and report.age_s < 60 and report.touches(x, y)
    ]
    assert sorted((row["who"], row["what"]) for row in rows) == sorted(expected)
    for row in rows:
        assert sorted(haven["name"] for haven in row["havens"]) == havens_of(row["what"])


def test_arguments_may_come_from_rows_in_select(cluster: LocalCluster, harbour: str) -> None:
    rows = cluster.rows(
        f"""USE {harbour};
        SELECT s.name AS name, warningsAt(get_x(s.mooring), get_y(s.mooring)) AS found
        FROM Havens s ORDER BY s.name;"""
    )
    expected = [(name, found(20, lambda r, x=x, y=y: r.touches(x, y))) for name, x, y in sorted(HAVENS)]  # type: ignore[misc]
    assert [(row["name"], messages(row["found"])) for row in rows] == expected


def test_a_users_name_may_come_from_rows(cluster: LocalCluster, harbour: str) -> None:
    rows = cluster.rows(
        f"""USE {harbour};
        WITH names AS (SELECT DISTINCT u.vessel AS vessel FROM Sightings u)
        SELECT n.vessel AS who, f.warning.wording AS what
        FROM names n, warningsOfAround("squall", n.vessel) f;"""
    )
    expected = [(who, what) for who in {who for who, *_ in USERS} for what in seen_near(who, "squall")]
    assert sorted((row["who"], row["what"]) for row in rows) == sorted(expected)


def test_functions_may_be_called_with_arguments_from_a_list(cluster: LocalCluster, harbour: str) -> None:
    rows = cluster.rows(
        f"""USE {harbour};
        SELECT hazard AS kind, array_count(found) AS n
        FROM ["squall", "fog", "ice"] AS hazard
        LET found = warningsOf(hazard);"""
    )
    expected = {kind: len(found(10, lambda r, k=kind: r.type == k)) for kind in ("squall", "fog", "ice")}  # type: ignore[misc]
    assert {row["kind"]: row["n"] for row in rows} == expected


def test_the_catalog_holds_what_the_script_made(cluster: LocalCluster, harbour: str) -> None:
    def names(dataset: str, field: str) -> list[str]:
        return cluster.rows(
            f'SELECT VALUE x.{field} FROM Metadata.`{dataset}` x WHERE x.DataverseName = "{harbour}" ORDER BY x.{field}'
        )

    assert names("Dataset", "DatasetName") == ["Havens", "Sightings", "Warnings"]
    assert len(names("Datatype", "DatatypeName")) == 5
    assert len(names("Function", "Name")) == 7
    structures = cluster.rows(
        "SELECT i.IndexName AS n, i.IndexStructure AS s FROM Metadata.`Index` i "
        f'WHERE i.DataverseName = "{harbour}" AND NOT i.IsPrimary'
    )
    assert {structure["n"]: structure["s"] for structure in structures} == {
        "warningTime": "BTREE", "sightingTime": "BTREE", "warningHazard": "LENGTH_PARTITIONED_WORD_INVIX",
        "warningWaters": "RTREE", "havenMooring": "RTREE",
    }  # fmt: skip
