"""Channels whose bodies have the clauses of SQL++ in its orders: each subscription is told what plain Python finds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.channels_in_process import ChannelDataverse
from tests.support.in_process_cluster import LocalCluster
from tests.support.literals import literal
from tests.support.waiting import wait_until

SETUP = """
CREATE TYPE Report AS OPEN { id: int, kind: string, level: int };
CREATE TYPE Shelter AS OPEN { name: string, room: int };
CREATE ACTIVE DATASET Reports(Report) PRIMARY KEY id;
CREATE DATASET Shelters(Shelter) PRIMARY KEY name;
CREATE BROKER B AT "http://127.0.0.1:1";
INSERT INTO Shelters [{"name": "hall", "room": 3}, {"name": "gym", "room": 5}, {"name": "shed", "room": 1}];
"""
REPORTS: list[dict[str, Any]] = [
    {"id": 1, "kind": "fire", "level": 2, "seen": [{"who": "ada", "near": 3}, {"who": "ben", "near": 9.5}]},
    {"id": 2, "kind": "flood", "level": 5, "seen": [{"who": "ada", "near": 5}]},
    {"id": 3, "kind": "fire", "level": 4},
]
SHELTERS = {"hall": 3, "gym": 5, "shed": 1}
FIRES = [report for report in REPORTS if report["kind"] == "fire"]
SEEN = [(report, i, item) for report in REPORTS for i, item in enumerate(report.get("seen", []), start=1)]


def _rooms(level: int) -> list[str]:
    return sorted(name for name, room in SHELTERS.items() if room >= level)


BODIES: dict[str, tuple[str, str, list[Any]]] = {
    "a value before SELECT": (
        ("(k) { WITH least AS 3, most AS least + 1 SELECT r.id, least FROM Reports r "
        "WHERE r.kind = k AND r.level BETWEEN least AND most }"),
        '"fire"', [{"id": 3, "least": 3}],
    ),
    "a value of a parameter": (
        "(k, n) { LET low = n - 1 FROM Reports r WHERE r.kind = k AND r.level > low SELECT r.id, low }",
        '"fire", 3', [{"id": 3, "low": 2}],
    ),
    "a value in a subquery in FROM": (
        ("(k) { WITH low AS 2 SELECT r.id FROM (SELECT VALUE r FROM Reports r WHERE is_new(r) AND r.level > low) r "
        "WHERE r.kind = k }"),
        '"fire"', [{"id": 3}],
    ),
    "a table before SELECT": (
        ("(k) { WITH fresh AS (SELECT VALUE r FROM Reports r WHERE is_new(r)) "
        "SELECT f.id FROM fresh f WHERE f.kind = k }"),
        '"fire"', [{"id": 1}, {"id": 3}],
    ),
    "an array before SELECT": (
        ("(k) { WITH names AS (SELECT VALUE s.name FROM Shelters s ORDER BY s.name) "
        "SELECT r.id, names, names[0] AS first FROM Reports r WHERE r.kind = k }"),
        '"flood"', [{"id": 2, "names": sorted(SHELTERS), "first": "gym"}],
    ),
    "FROM first": (
        ("(k) { FROM Reports r LET rooms = (FROM Shelters s WHERE s.room >= r.level "
        "SELECT VALUE s.name ORDER BY s.name) "
        "WHERE r.kind = k SELECT r.id, rooms }"),
        '"fire"', [{"id": report["id"], "rooms": _rooms(report["level"])} for report in FIRES],
    ),
    "positions": (
        "(k) { SELECT r.id, i, s.near FROM Reports r UNNEST r.seen AS s AT i WHERE s.who = k }",
        '"ada"', [{"id": r["id"], "i": i, "near": s["near"]} for r, i, s in SEEN if s["who"] == "ada"],
    ),
    "a subquery about an untyped item": (
        ("(k) { SELECT s.near, (SELECT VALUE h.name FROM Shelters h WHERE h.room = s.near) AS rooms "
        "FROM Reports r UNNEST r.seen AS s WHERE s.who = k }"),
        '"ben"', [{"near": 9.5, "rooms": []}],
    ),
    "a subquery of a group": (
        ("(k) { SELECT w, (SELECT VALUE g.r.id FROM g WHERE g.r.level > 1 ORDER BY g.r.id) AS ids FROM Reports r "
        "WHERE r.kind = k GROUP BY r.kind AS w GROUP AS g }"),
        '"fire"', [{"w": "fire", "ids": [1, 3]}],
    ),
    "times with their argument": (
        ("(k) { SELECT r.id, active_timestamp(r) = meta(r).`_active_timestamp` AS same FROM Reports r WHERE r.kind = k "
        'AND active_timestamp(r) > previous_channel_time(r) AND active_timestamp(r) <= current_channel_time("c") '
        "AND is_new(r) }"),
        '"flood"', [{"id": 2, "same": True}],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("body", "arguments", "expected"), BODIES.values(), ids=BODIES.keys())
def test_a_channel_tells_what_its_body_means(
    cluster: LocalCluster, dataverse: str, body: str, arguments: str, expected: list[Any]
) -> None:
    place = ChannelDataverse(cluster, dataverse)
    place.run(f"{SETUP} CREATE CONTINUOUS CHANNEL c{body};")
    subscription = place.subscribe(f"c({arguments})")
    place.run(f"INSERT INTO Reports {literal(REPORTS)}")
    wait_until(lambda: len(place.told("c").get(subscription, [])) >= len(expected), "the channel tells")
    told = place.told("c")[subscription]
    assert sorted(told, key=str) == sorted(expected, key=str)
