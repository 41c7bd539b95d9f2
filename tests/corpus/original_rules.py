# ruff: noqa: E501 (a query reads best in one line)
"""Rules of SQL++ that Spark does not have: MISSING sides of outer joins, comparisons by kind, `*` over untyped values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tests.corpus.data import PEOPLE as P
from tests.corpus.data import VISITS as V
from tests.corpus.data import Record
from tests.corpus.entry import Entry, get, grouped, known, obj, ordered, q
from tocsin.rules.model.values import MISSING

PLACES: Final = grouped(V, lambda v: v["place"])
LISTED: Final = [x for p in P for x in (get(p, "extra", "list") if isinstance(get(p, "extra", "list"), list) else [])]


def _extra(person: Record) -> Record:
    extra = get(person, "extra")
    return extra if isinstance(extra, dict) else {}


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return "number" if isinstance(value, int | float) else type(value).__name__


def _equal(left: Any, right: Any) -> bool | None:
    """`=` of SQL++: unknown if a side is, or if the kinds differ."""
    if not known(left) or not known(right) or _kind(left) != _kind(right):
        return None
    return bool(left == right)


def _not_in(left: Any, items: list[Any]) -> bool | None:
    answers = [_equal(left, item) for item in items]
    return False if True in answers else None if None in answers else True


# ORDER BY names a column of its SELECT, also where the rows become an array.
BY_ALIAS: Final[list[Entry]] = [
    q("SELECT VALUE (SELECT v.id AS q FROM Visits v ORDER BY q DESC LIMIT 2)", lambda: [[{"q": 8}, {"q": 7}]]),
    q("WITH best AS (SELECT v.cost AS c, v.id FROM Visits v ORDER BY c DESC, id LIMIT 1) SELECT VALUE best",
      lambda: [[{"c": v["cost"], "id": v["id"]} for v in sorted(V, key=lambda v: (-v["cost"], v["id"]))[:1]]]),
    q("SELECT p.id, best FROM People p LET best = (SELECT v.place AS w FROM Visits v WHERE v.person = p.id ORDER BY w DESC LIMIT 1)",
      lambda: [{"id": p["id"], "best": [{"w": w} for w in sorted((v["place"] for v in V if v["person"] == p["id"]), reverse=True)[:1]]} for p in P]),
    q("SELECT VALUE (SELECT v.place AS w, count(*) AS c FROM Visits v GROUP BY v.place ORDER BY c DESC, w)",
      lambda: [[{"w": w, "c": len(PLACES[w])} for w in sorted(PLACES, key=lambda w: (-len(PLACES[w]), w))]]),
    q("SELECT w, (SELECT x.v.id AS i FROM g x ORDER BY i DESC) AS ids FROM Visits v GROUP BY v.place AS w GROUP AS g",
      lambda: [{"w": w, "ids": [{"i": i} for i in sorted((v["id"] for v in rows), reverse=True)]} for w, rows in PLACES.items()]),
    q("SELECT VALUE (SELECT v.id, v.minutes FROM Visits v ORDER BY 2 DESC LIMIT 1)", lambda: [[{"id": 4, "minutes": 240}]]),
    q("SELECT VALUE dearest(2)", lambda: [[{"id": v["id"], "c": v["cost"]} for v in sorted(V, key=lambda v: -v["cost"])[:2]]]),
]  # fmt: skip

# LIMIT and OFFSET by a field of an outer row.
OUTER_LIMIT: Final[list[Entry]] = [
    q("SELECT VALUE (SELECT VALUE v.id FROM Visits v ORDER BY v.id LIMIT p.id) FROM People p", lambda: [[v["id"] for v in V][: p["id"]] for p in P]),
    q("SELECT VALUE (SELECT VALUE v.id FROM Visits v ORDER BY v.id LIMIT 2 OFFSET p.id) FROM People p",
      lambda: [[v["id"] for v in V][p["id"] : p["id"] + 2] for p in P]),
    q("SELECT VALUE (SELECT VALUE v.id FROM Visits v ORDER BY v.id LIMIT p.extra.level) FROM People p WHERE p.id IN [1, 2, 4, 6]",
      lambda: [[1, 2, 3], [], [], [1]]),
    q("SELECT VALUE dearest(p.id) FROM People p WHERE p.id < 3",
      lambda: [[{"id": v["id"], "c": v["cost"]} for v in sorted(V, key=lambda v: -v["cost"])[:n]] for n in (1, 2)]),
]  # fmt: skip


def _partner(visit: Record, test: Callable[[Record], bool] = lambda _: True) -> Any:
    return next((p for p in P if p["id"] == visit["person"] and test(p)), MISSING)


OUTER_JOINS: Final[list[Entry]] = [
    q("SELECT v.id, p, p.name AS n, p.nick AS k FROM Visits v LEFT OUTER JOIN People p ON p.id = v.person AND p.id > 2",
      lambda: [obj(id=v["id"], p=p, n=get(p, "name"), k=get(p, "nick")) for v in V for p in [_partner(v, lambda p: p["id"] > 2)]]),
    q("SELECT VALUE [v.id, p IS MISSING, p IS NULL, p.name IS MISSING, p.nick IS MISSING, p.age IS NULL] FROM Visits v LEFT JOIN People p ON p.id = v.person",
      lambda: [[v["id"], p is MISSING, False, p is MISSING, get(p, "nick") is MISSING, get(p, "age") is None] for v in V for p in [_partner(v)]]),
    q("SELECT v.id AS v, z.* FROM Visits v LEFT JOIN (SELECT p.id, p.name AS n, p.big + null AS x FROM People p) z ON z.id = v.person",
      lambda: [obj(v=v["id"], id=get(p, "id"), n=get(p, "name"), x=MISSING if p is MISSING else None) for v in V for p in [_partner(v)]]),
    q("SELECT a.id AS a, b AS b FROM People a LEFT JOIN (SELECT VALUE p.big - p.big + p.id FROM People p) b ON b = a.id + 4",
      lambda: [obj(a=p["id"], b=p["id"] + 4 if p["id"] + 4 <= 6 else MISSING) for p in P]),
    q("WITH w AS (SELECT VALUE p.id FROM People p) SELECT v.id, i FROM Visits v LEFT JOIN w i ON i = v.person",
      lambda: [obj(id=v["id"], i=get(_partner(v), "id")) for v in V]),
    q("SELECT a.id AS a, b.id AS b FROM People a FULL OUTER JOIN Visits b ON a.id = b.id",
      lambda: [obj(a=i if i < 7 else MISSING, b=i) for i in range(1, 9)]),
    q("SELECT p.name AS n, x FROM [1, 77] x RIGHT JOIN People p ON p.id = x", lambda: [obj(n=p["name"], x=1 if p["id"] == 1 else MISSING) for p in P]),
    q("SELECT p.id FROM People p LEFT JOIN Visits v ON v.person = p.id WHERE v IS MISSING",
      lambda: [{"id": p["id"]} for p in P if not any(v["person"] == p["id"] for v in V)]),
    q("SELECT p.id, count(v) AS n FROM People p LEFT JOIN Visits v ON v.person = p.id GROUP BY p.id",
      lambda: [{"id": p["id"], "n": sum(v["person"] == p["id"] for v in V)} for p in P]),
]  # fmt: skip

# A declared key of a group is MISSING if all of the group is, and NULL and MISSING share a group.
KEYS: Final[list[Entry]] = [
    q("SELECT k, count(*) AS n FROM People p WHERE p.id IN [1, 3] GROUP BY p.score AS k", lambda: [{"k": 1.5, "n": 1}, {"n": 1}]),
    q("SELECT p.seen, count(*) AS n FROM People p WHERE p.id IN [3, 6] GROUP BY p.seen", lambda: [{"n": 2}]),
    q("SELECT k, count(*) AS n FROM People p WHERE p.id IN [2, 3] GROUP BY p.seen AS k", lambda: [{"k": None, "n": 2}]),
    q("SELECT k, count(*) AS n FROM People p WHERE p.id IN [2, 3] GROUP BY p.nick AS k", lambda: [{"k": None, "n": 2}]),
    ordered("SELECT k, count(*) AS n FROM People p GROUP BY p.score AS k HAVING k IS MISSING OR k > 1 ORDER BY k DESC",
            lambda: [{"k": 2.25, "n": 1}, {"k": 1.5, "n": 2}, {"n": 1}]),
    q("SELECT VALUE {'k': k, 'ids': (SELECT VALUE x.p.id FROM g x ORDER BY x.p.id)} FROM People p WHERE p.id IN [3, 6] GROUP BY p.seen AS k GROUP AS g",
      lambda: [{"ids": [3, 6]}]),
]  # fmt: skip

COMPARED: Final[list[Entry]] = [
    q("SELECT VALUE [a.id, b.id, a.mixed = b.mixed, a.mixed <> b.mixed] FROM People a, People b",
      lambda: [[a["id"], b["id"], same, None if same is None else not same]
               for a in P for b in P for same in [_equal(get(a, "mixed"), get(b, "mixed"))]]),
    q("SELECT VALUE [p.id, p.id NOT IN (SELECT VALUE x.mixed FROM People x WHERE x.id < 4)] FROM People p",
      lambda: [[p["id"], _not_in(p["id"], [7, "seven", 7.5])] for p in P]),
    q("SELECT VALUE [p.id, p.mixed NOT IN (SELECT VALUE x.mixed FROM People x WHERE x.id IN [1, 3])] FROM People p",
      lambda: [[p["id"], _not_in(get(p, "mixed"), [7, 7.5])] for p in P]),
    q("SELECT VALUE [p.id, p.mixed NOT IN (SELECT VALUE v.id FROM Visits v)] FROM People p",
      lambda: [[p["id"], _not_in(get(p, "mixed"), [v["id"] for v in V])] for p in P]),
    q("SELECT VALUE p.id FROM People p WHERE p.id NOT IN (SELECT VALUE x.mixed FROM People x WHERE x.id = 2)", list),
    q("SELECT VALUE p.id FROM People p WHERE p.mixed NOT IN (SELECT x.mixed FROM People x WHERE x.id = 1)", lambda: [3]),
    q("SELECT VALUE p.id FROM People p WHERE NOT p.mixed = p.nick", list),
    q("SELECT VALUE [p.id, p.id IN (SELECT x.age FROM People x WHERE x.id IN [1, 2])] FROM People p WHERE p.id < 3", lambda: [[1, None], [2, None]]),
    q("SELECT VALUE p.id IN (SELECT VALUE v.id FROM Visits v WHERE v.id > 100) FROM People p", lambda: [False] * 6),
]  # fmt: skip


def _levels() -> list[Any]:
    return [get(p, "extra", "level") for p in P if get(p, "extra", "level") is not MISSING]


SETS: Final[list[Entry]] = [
    q("SELECT VALUE p.extra.level FROM People p WHERE p.extra.level IS VALUED UNION SELECT VALUE p.extra.level FROM People p WHERE p.extra.level IS VALUED",
      lambda: [level for level in _levels() if level is not None]),
    q("SELECT VALUE p.extra.level FROM People p WHERE p.extra.level IS VALUED INTERSECT SELECT VALUE v.id FROM Visits v", lambda: [3, 1]),
    q("SELECT p.mixed FROM People p WHERE p.id < 4 EXCEPT SELECT v.id FROM Visits v", lambda: [{"mixed": "seven"}, {"mixed": 7.5}]),
    q("(SELECT VALUE p.extra.list FROM People p WHERE p.id = 1) EXCEPT ALL (SELECT VALUE p.extra.list FROM People p WHERE p.id = 1)", list),
    q("(SELECT VALUE x FROM [1, 1, 'a', 'a'] x) INTERSECT ALL (SELECT VALUE x FROM [1, 'a', 'a', 'a'] x)", lambda: [1, "a", "a"]),
    q("(SELECT VALUE x FROM [1, 1, 'a', 'a'] x) EXCEPT ALL (SELECT VALUE x FROM [1.0, 'b'] x)", lambda: [1, "a", "a"]),
    ordered("SELECT VALUE p.extra.level FROM People p WHERE p.extra.level IS VALUED UNION SELECT VALUE 9 ORDER BY 1 DESC LIMIT 2", lambda: [9, 5.5]),
]  # fmt: skip

SPREAD: Final[list[Entry]] = [
    q("SELECT x.* FROM People p UNNEST p.extra.list AS x", lambda: LISTED),
    q("SELECT p.extra.*, p.id FROM People p", lambda: [{**_extra(p), "id": p["id"]} for p in P]),
    q("SELECT x.*, 9 AS c FROM People p UNNEST p.extra.list AS x", lambda: [{**x, "c": 9} for x in LISTED]),
    q("SELECT p.*, 'n' AS nick FROM People p", lambda: [{**p, "nick": "n"} for p in P]),
    q("SELECT x.*, y.* FROM [{'a': 1, 'b': 'x'}, {'a': 'y', 'c': 2.0}] x, [{'a': null, 'd': [1, 'z']}, 'no object'] y",
      lambda: [{"a": None, "b": "x", "d": [1, "z"]}, {"a": None, "c": 2.0, "d": [1, "z"]}, {"a": 1, "b": "x"}, {"a": "y", "c": 2.0}]),
    q("SELECT x.*, 1 AS n FROM [5, 'a', null, point('1,2'), {}, {'$x': 7.0}, [1]] x", lambda: [*([{"n": 1}] * 5), {"$x": 7.0, "n": 1}, {"n": 1}]),
    q("SELECT VALUE flagged(x)[0] FROM People p UNNEST p.extra.list AS x", lambda: [{**x, "flag": x["c"] > 1} for x in LISTED]),
    q("SELECT VALUE flagged(p)[0].name FROM People p WHERE p.id = 1", lambda: ["Ada"]),
    q("SELECT VALUE (SELECT x.*, p.id FROM p.extra.list x ORDER BY x.c DESC) FROM People p WHERE p.id = 1",
      lambda: [[{**x, "id": 1} for x in reversed(LISTED)]]),
]  # fmt: skip

DATASETS: Final[list[Entry]] = [
    q("array_count(People)", lambda: [len(P)]),
    q("LET x = Visits SELECT VALUE len(x)", lambda: [len(V)]),
    q("WITH x AS Visits SELECT VALUE array_max((SELECT VALUE y.cost FROM x y))", lambda: [max(v["cost"] for v in V)]),
    q("SELECT VALUE SOME v IN $dataverse.Visits SATISFIES v.place = 'zoo'", lambda: [True]),
    q("SELECT z.name, len(People) AS n FROM Zones z", lambda: [{"name": "near", "n": 6}, {"name": "far", "n": 6}]),
]  # fmt: skip

FORMS: Final[list[Entry]] = [
    q("SELECT VALUE +p.id FROM People p", lambda: [p["id"] for p in P]),
    q("SELECT VALUE [+p.name, +p.mixed, +1.5, 1 + +2] FROM People p WHERE p.id < 3", lambda: [[None, 7, 1.5, 3], [None, None, 1.5, 3]]),
    q("SELECT VALUE p.tags || p.tags FROM People p", lambda: [p["tags"] * 2 for p in P]),
    q("SELECT VALUE p.tags || ['q'] || p.extra.list FROM People p WHERE p.id = 1", lambda: [[*P[0]["tags"], "q", *LISTED]]),
    q("SELECT VALUE p.extra.list || p.extra.list FROM People p WHERE p.id < 3", lambda: [LISTED * 2, []]),
    q("SELECT VALUE [1] || ['a']", lambda: [[1, "a"]]),
    q("SELECT VALUE [p.tags || 'a', 'a' || p.nick || 'b'] FROM People p WHERE p.id < 3", lambda: [[None, "aadb"], [None, None]]),
    q("SELECT VALUE [SOME AND EVERY t IN p.tags SATISFIES t = 'y', EVERY t IN p.tags SATISFIES t = 'y'] FROM People p",
      lambda: [[bool(p["tags"]) and all(t == "y" for t in p["tags"]), all(t == "y" for t in p["tags"])] for p in P]),
    q("SELECT p.id, p.name.first AS f, p.id.x.y AS g, p.age.years AS a FROM People p WHERE p.id < 4", lambda: [{"id": 1}, {"id": 2, "a": None}, {"id": 3}]),
    q("SELECT VALUE t FROM People CORRELATE People.tags AS t", lambda: [t for p in P for t in p["tags"]]),
    q("SELECT VALUE t FROM People p FLATTEN p.tags AS t", lambda: [t for p in P for t in p["tags"]]),
]  # fmt: skip

ENTRIES: Final = [*BY_ALIAS, *OUTER_LIMIT, *OUTER_JOINS, *KEYS, *COMPARED, *SETS, *SPREAD, *DATASETS, *FORMS]
