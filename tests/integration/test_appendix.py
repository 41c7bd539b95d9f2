"""The script of the dissertation's appendix A runs as it stands there, and its functions answer rightly.

The cluster's clock is held still, so that a report one second inside a window and one second outside of it can be told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.literals import literal
from tests.local_cluster import LocalCluster
from tocsin.rules.model.values import Circle, Point, datetime_text

NOW = datetime(2026, 11, 15, 8, 30, 0, 250_000, tzinfo=UTC)
APPENDIX = (Path(__file__).parent / "appendix_a.sql").read_text()


class _StandingClock(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> _StandingClock:
        return cls.fromtimestamp(NOW.timestamp(), tz)


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
            "severity": 3,
            "impactZone": Circle(Point(self.x, self.y), self.radius),
            "timeoffset": 0.5,
            "timestamp": NOW - timedelta(seconds=self.age_s),
            "duration": 600.0,
            "message": self.message,
            "emergencyType": self.type,
            "userName": "reporter",
            "undeclared": {"source": ["radio", None]},
        }


REPORTS = [
    Report(f"{kind} {age:g}s at {x:g}", kind, age, x, 0.0, 2.0)
    for kind in ("flood", "fire")
    for age in (-5.0, 0.0, 9.999, 10.0, 10.001, 19.999, 20.0, 29.999, 30.0, 59.999, 60.0, 3_600.0)
    for x in (0.0, 10.0)
]
# (name, x, y, age): u1 in the zone at 0, u2 in the one at 10, u3 on the rim of the zone at 0, u4 in none, u5 too long
# ago, u6 was seen twice, once in each zone.
USERS = [
    ("u1", 1.0, 0.0, 1.0), ("u2", 10.0, 1.0, 9.999), ("u3", -2.0, 0.0, 0.0), ("u4", 5.0, 5.0, 0.0),
    ("u5", 1.0, 0.0, 10.0), ("u6", 0.5, 0.5, 1.0), ("u6", 10.5, 0.5, 2.0),
]  # fmt: skip
SHELTERS = [("north", 0.0, 1.5), ("rim", 2.0, 0.0), ("east", 10.0, -1.0), ("far", 50.0, 50.0)]


def found(within_s: float, wanted: Callable[[Report], bool]) -> list[str]:
    return sorted(one.message for one in REPORTS if one.age_s < within_s and wanted(one))


def near(user: str) -> list[tuple[float, float]]:
    return [(x, y) for name, x, y, age in USERS if name == user and age < 10]


def seen_near(user: str, kind: str | None = None) -> list[str]:
    """One row per report and sighting."""
    return sorted(
        one.message
        for one in REPORTS
        for place in near(user)
        if one.age_s < 10 and kind in (None, one.type) and one.touches(*place)
    )


def shelters_of(message: str) -> list[str]:
    (report,) = (one for one in REPORTS if one.message == message)
    return sorted(name for name, x, y in SHELTERS if report.touches(x, y))


@pytest.fixture(scope="module")
def appendix(cluster: LocalCluster) -> Iterator[str]:
    """A dataverse in which the appendix ran and reports, users and shelters are placed."""
    name = f"appendix{uuid4().hex}"
    cluster.run(f"CREATE DATAVERSE {name}; USE {name}; {APPENDIX}")
    users = [
        {"latitude": x, "longitude": y, "userName": who, "timeoffset": 0.0, "timestamp": NOW - timedelta(seconds=age)}
        for who, x, y, age in USERS
    ]
    shelters = [{"name": who, "location": Point(x, y), "beds": 12} for who, x, y in SHELTERS]
    cluster.run(
        f"USE {name}; INSERT INTO EmergencyReports {literal([one.record() for one in REPORTS])};"
        f"INSERT INTO UserLocations {literal(users)}; INSERT INTO EmergencyShelters ({literal(shelters)});"
    )
    yield name
    cluster.run(f"DROP DATAVERSE {name}")


@pytest.fixture(autouse=True)
def _standing_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.cluster.statements.datetime", _StandingClock)


def messages(rows: list[Any]) -> list[str]:
    return sorted(row["reports"]["message"] for row in rows)


def assert_sheltered(rows: list[Any]) -> None:
    for row in rows:
        assert sorted(one["name"] for one in row["shelters"]) == shelters_of(row["reports"]["message"])
        assert all(one["beds"] == 12 for one in row["shelters"])


CALLS: list[tuple[str, list[str], bool]] = [
    ('recentEmergenciesOfType("flood")', found(10, lambda r: r.type == "flood"), False),
    ('recentEmergenciesOfType("storm")', [], False),
    ("recentEmergenciesAtLocation(2.0, 0)", found(20, lambda r: r.touches(2, 0)), False),
    ("recentEmergenciesAtLocation(5.0, 0.0)", [], False),
    (
        'recentEmergenciesOfTypeAtLocation("fire", 10, 0.5)',
        found(30, lambda r: r.type == "fire" and r.touches(10, 0.5)),
        False,
    ),
    (
        'recentEmergenciesOfTypeAtLocationWithShelter("flood", 0.0, 0.0)',
        found(60, lambda r: r.type == "flood" and r.touches(0, 0)),
        True,
    ),
    *((f'recentEmergenciesNearMe("{user}")', seen_near(user), False) for user in ("u1", "u2", "u3", "u4", "u5", "u6")),
    ('recentEmergenciesOfTypeNearMe("fire", "u6")', seen_near("u6", "fire"), False),
    ('recentEmergenciesOfTypeWithShelterNearMe("flood", "u3")', seen_near("u3", "flood"), True),
    ('recentEmergenciesOfTypeWithShelterNearMe("flood", "u2")', seen_near("u2", "flood"), True),
]


@pytest.mark.parametrize(("call", "expected", "with_shelters"), CALLS, ids=[call for call, _, _ in CALLS])
def test_each_function_answers_for_constants(
    cluster: LocalCluster, appendix: str, call: str, expected: list[str], with_shelters: bool
) -> None:
    in_from = cluster.rows(f"USE {appendix}; SELECT VALUE f FROM {call} AS f;")
    (in_select,) = cluster.rows(f"USE {appendix}; SELECT VALUE {call};")
    alone = cluster.rows(f"USE {appendix}; {call};")[0]
    for rows in (in_from, in_select, alone):
        assert messages(rows) == expected
        if with_shelters:
            assert_sheltered(rows)


def test_a_report_comes_back_whole(cluster: LocalCluster, appendix: str) -> None:
    rows = cluster.rows(f"USE {appendix}; SELECT VALUE f.reports FROM recentEmergenciesAtLocation(0, 0) f")
    for row in rows:
        (report,) = (one for one in REPORTS if one.message == row["message"])
        assert set(row) == {*report.record(), "recordId"}
        assert row["impactZone"] == {"center": [report.x, 0.0], "radius": 2.0}
        assert row["timestamp"] == datetime_text(NOW - timedelta(seconds=report.age_s))
        assert row["undeclared"] == {"source": ["radio", None]}
        assert (row["severity"], row["emergencyType"], row["duration"]) == (3, report.type, 600.0)


def test_arguments_may_come_from_rows_in_from(cluster: LocalCluster, appendix: str) -> None:
    rows = cluster.rows(
        f"""USE {appendix};
        SELECT u.userName AS who, f.reports.message AS what, f.shelters AS shelters
        FROM UserLocations u, recentEmergenciesOfTypeAtLocationWithShelter("fire", u.latitude, u.longitude) f;"""
    )
    expected = [
        (who, one.message)
        for who, x, y, _ in USERS
        for one in REPORTS
        if one.type == "fire" and one.age_s < 60 and one.touches(x, y)
    ]
    assert sorted((row["who"], row["what"]) for row in rows) == sorted(expected)
    for row in rows:
        assert sorted(one["name"] for one in row["shelters"]) == shelters_of(row["what"])


def test_arguments_may_come_from_rows_in_select(cluster: LocalCluster, appendix: str) -> None:
    rows = cluster.rows(
        f"""USE {appendix};
        SELECT s.name AS name, recentEmergenciesAtLocation(get_x(s.location), get_y(s.location)) AS found
        FROM EmergencyShelters s ORDER BY s.name;"""
    )
    expected = [(name, found(20, lambda r, x=x, y=y: r.touches(x, y))) for name, x, y in sorted(SHELTERS)]  # type: ignore[misc]
    assert [(row["name"], messages(row["found"])) for row in rows] == expected


def test_a_users_name_may_come_from_rows(cluster: LocalCluster, appendix: str) -> None:
    rows = cluster.rows(
        f"""USE {appendix};
        WITH names AS (SELECT DISTINCT u.userName AS userName FROM UserLocations u)
        SELECT n.userName AS who, f.reports.message AS what
        FROM names n, recentEmergenciesOfTypeNearMe("flood", n.userName) f;"""
    )
    expected = [(who, what) for who in {who for who, *_ in USERS} for what in seen_near(who, "flood")]
    assert sorted((row["who"], row["what"]) for row in rows) == sorted(expected)


def test_functions_may_be_called_with_arguments_from_a_list(cluster: LocalCluster, appendix: str) -> None:
    rows = cluster.rows(
        f"""USE {appendix};
        SELECT emergencyType AS kind, array_count(found) AS n
        FROM ["flood", "fire", "storm"] AS emergencyType
        LET found = recentEmergenciesOfType(emergencyType);"""
    )
    expected = {kind: len(found(10, lambda r, k=kind: r.type == k)) for kind in ("flood", "fire", "storm")}  # type: ignore[misc]
    assert {row["kind"]: row["n"] for row in rows} == expected


def test_the_catalog_holds_what_the_appendix_made(cluster: LocalCluster, appendix: str) -> None:
    def names(dataset: str, field: str) -> list[str]:
        return cluster.rows(
            f"SELECT VALUE x.{field} FROM Metadata.`{dataset}` x"
            f' WHERE x.DataverseName = "{appendix}" ORDER BY x.{field}'
        )

    assert names("Dataset", "DatasetName") == ["EmergencyReports", "EmergencyShelters", "UserLocations"]
    assert len(names("Datatype", "DatatypeName")) == 5
    assert len(names("Function", "Name")) == 7
    structures = cluster.rows(
        f'SELECT i.IndexName AS n, i.IndexStructure AS s FROM Metadata.`Index` i WHERE i.DataverseName = "{appendix}"'
    )
    assert {one["n"]: one["s"] for one in structures} == {
        "gbTimestampReport": "BTREE", "gbTimestampLocation": "BTREE", "gbEmergencyTypeReport": "KEYWORD",
        "locReports": "RTREE", "locShelters": "RTREE",
    }  # fmt: skip
