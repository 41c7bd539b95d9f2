# ruff: noqa: E501 (a query reads best in one line)
"""The orders of clauses that SQL++ has: WITH and LET first, FROM first, AT, subqueries of groups and of untyped values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tests.corpus.data import PEOPLE as P
from tests.corpus.data import THINGS as T
from tests.corpus.data import VISITS as V
from tests.corpus.data import Record
from tests.corpus.entry import Entry, get, grouped, known, ordered, q

PLACES: Final = grouped(V, lambda v: v["place"])
PERSONS: Final = grouped(V, lambda v: v["person"])
BY_AGE: Final = sorted((p["age"] for p in P if known(get(p, "age"))), reverse=True)


def _listed() -> Iterator[tuple[Record, int, Any]]:
    """Every item of the undeclared array `extra.list` with its person and its position."""
    for person in P:
        items = get(person, "extra", "list")
        for i, item in enumerate(items if isinstance(items, list) else [], start=1):
            yield person, i, item


def _things() -> list[int]:
    """The numbers of Things after the changes of the script."""
    return [11, *(thing["n"] for thing in T if thing["key"]["a"] == 2), 50]


FIRST: Final[list[Entry]] = [
    q("WITH x AS 5 SELECT VALUE x", lambda: [5]),
    q("WITH x AS 5, y AS x + 1, z AS [x, y] SELECT VALUE {'z': z, 'last': z[1]}", lambda: [{"z": [5, 6], "last": 6}]),
    q("WITH low AS 30, old AS (SELECT VALUE p.id FROM People p WHERE p.age > low) SELECT VALUE o FROM old o",
      lambda: [p["id"] for p in P if (get(p, "age") or 0) > 30]),
    q("WITH ages AS (SELECT VALUE p.age FROM People p WHERE p.age IS VALUED ORDER BY p.age DESC) SELECT VALUE {'most': ages[0], 'all': ages}",
      lambda: [{"most": BY_AGE[0], "all": BY_AGE}]),
    q("WITH ages AS (SELECT VALUE p.age FROM People p) SELECT VALUE p.id FROM People p WHERE p.age = array_max(ages)",
      lambda: [p["id"] for p in P if get(p, "age") == 56]),
    q("WITH zoo AS (SELECT VALUE v.person FROM Visits v WHERE v.place = 'zoo') SELECT VALUE p.name FROM People p WHERE p.id IN zoo",
      lambda: [p["name"] for p in P if any(v["person"] == p["id"] and v["place"] == "zoo" for v in V)]),
    q("WITH first AS (SELECT VALUE p FROM People p ORDER BY p.id)[0] SELECT VALUE first.name", lambda: ["Ada"]),
    q("WITH low AS 30 SELECT VALUE p.id FROM (SELECT VALUE p FROM People p WHERE p.age > low) p",
      lambda: [p["id"] for p in P if (get(p, "age") or 0) > 30]),
    q("WITH n AS 1 SELECT VALUE n UNION ALL SELECT VALUE n + 1", lambda: [1, 2]),
    q("SELECT VALUE (WITH n AS p.id * 2 SELECT VALUE n + x FROM [1, 2] x ORDER BY x) FROM People p",
      lambda: [[2 * p["id"] + 1, 2 * p["id"] + 2] for p in P]),
    q("SELECT VALUE (WITH t AS (SELECT VALUE v.id FROM Visits v WHERE v.person = p.id) SELECT VALUE t FROM t ORDER BY t) FROM People p",
      lambda: [sorted(v["id"] for v in V if v["person"] == p["id"]) for p in P]),
    q("WITH t AS (SELECT p.id, p.name FROM People p) SELECT t.name FROM t WHERE t.id = 1", lambda: [{"name": "Ada"}]),
    q("LET x = 2 SELECT VALUE x * x", lambda: [4]),
    q("LET x = 2, y = x + 1 SELECT VALUE p.id FROM People p WHERE p.id > x AND p.id <= y", lambda: [3]),
    q("LET id = 4 SELECT VALUE id FROM People p WHERE p.id = 1", lambda: [4]),
    q("SELECT VALUE (LET n = len(p.tags) SELECT VALUE n)[0] FROM People p", lambda: [len(p["tags"]) for p in P]),
    q("LET low = (SELECT VALUE avg(p.age) FROM People p)[0] FROM People p WHERE p.age > low SELECT VALUE p.id",
      lambda: [p["id"] for p in P if known(get(p, "age")) and p["age"] > sum(BY_AGE) / len(BY_AGE)]),
    q("FROM People p SELECT VALUE p.id", lambda: [p["id"] for p in P]),
    q("FROM People SELECT id, name AS n", lambda: [{"id": p["id"], "n": p["name"]} for p in P]),
    ordered("FROM People p WHERE p.age > 30 SELECT p.name ORDER BY p.name DESC LIMIT 2",
            lambda: [{"name": n} for n in sorted((p["name"] for p in P if (get(p, "age") or 0) > 30), reverse=True)[:2]]),
    q("FROM People p, Visits v LET c = v.cost WHERE v.person = p.id AND c > 5 SELECT p.name, c",
      lambda: [{"name": p["name"], "c": v["cost"]} for p in P for v in V if v["person"] == p["id"] and v["cost"] > 5]),
    q("FROM People p JOIN Visits v ON v.person = p.id SELECT VALUE [p.id, v.id]",
      lambda: [[p["id"], v["id"]] for p in P for v in V if v["person"] == p["id"]]),
    q("FROM Visits v GROUP BY v.place AS w HAVING count(*) > 1 SELECT w, sum(v.minutes) AS m",
      lambda: [{"w": w, "m": sum(v["minutes"] for v in rows)} for w, rows in PLACES.items() if len(rows) > 1]),
    q("FROM Visits v GROUP BY v.place AS w LETTING n = count(*) HAVING n > 2 SELECT VALUE {w, n}",
      lambda: [{"w": w, "n": len(rows)} for w, rows in PLACES.items() if len(rows) > 2]),
    q("FROM People p SELECT DISTINCT p.address.city AS city", lambda: [{"city": c} for c in {p["address"]["city"] for p in P}]),
    q("FROM [1, 2] x SELECT VALUE x UNION ALL FROM [3] y SELECT VALUE y", lambda: [1, 2, 3]),
    q("SELECT VALUE (FROM p.tags t WHERE t <> 'x' SELECT VALUE t) FROM People p", lambda: [[t for t in p["tags"] if t != "x"] for p in P]),
    q("SELECT VALUE x FROM [{'a': {'b': {'c': {'d': [1, 2]}}}}] AS r, r.a.b.c.d AS x", lambda: [1, 2]),
    q("SELECT ELEMENT p.name FROM People p", lambda: [p["name"] for p in P]),
    q("SELECT RAW {'n': p.name} FROM People p WHERE p.id = 2", lambda: [{"n": "Ben"}]),
]  # fmt: skip

NUMBERED: Final[list[Entry]] = [
    q("SELECT VALUE [x, i] FROM ['a', 'b'] AS x AT i", lambda: [["a", 1], ["b", 2]]),
    q("SELECT p.id, t, i FROM People p UNNEST p.tags t AT i",
      lambda: [{"id": p["id"], "t": t, "i": i} for p in P for i, t in enumerate(p["tags"], start=1)]),
    q("SELECT VALUE [p.id, i, x.c] FROM People p, p.extra.list AS x AT i", lambda: [[p["id"], i, x["c"]] for p, i, x in _listed()]),
    q("SELECT VALUE [sku, i] FROM Visits v UNNEST v.items AT i WHERE i > 1",
      lambda: [[item["sku"], i] for v in V for i, item in enumerate(v["items"], start=1) if i > 1]),
    q("SELECT p.id, t, i FROM People p LEFT UNNEST p.tags AS t AT i WHERE p.id IN [3, 5]", lambda: [{"id": 3}, {"id": 5, "t": "", "i": 1}]),
    q("FROM (SELECT VALUE p.name FROM People p ORDER BY p.id DESC) AS n AT i WHERE i < 3 SELECT n, i",
      lambda: [{"n": P[-i]["name"], "i": i} for i in (1, 2)]),
    q("SELECT VALUE [i, j] FROM [[5], [6, 7]] AS x AT i UNNEST x AS y AT j", lambda: [[1, 1], [2, 1], [2, 2]]),
    q("SELECT VALUE (SELECT VALUE i FROM p.tags AS t AT i WHERE t = 'x') FROM People p",
      lambda: [[i for i, t in enumerate(p["tags"], start=1) if t == "x"] for p in P]),
    q("SELECT VALUE [v, i] FROM visitsOf(1) AS v AT i WHERE i > 2", list),
]  # fmt: skip

GROUPED: Final[list[Entry]] = [
    q("SELECT w, (SELECT VALUE g.v.id FROM g WHERE g.v.cost > 5 ORDER BY g.v.id) AS ids, count(*) AS n FROM Visits v GROUP BY v.place AS w GROUP AS g",
      lambda: [{"w": w, "ids": [v["id"] for v in rows if v["cost"] > 5], "n": len(rows)} for w, rows in PLACES.items()]),
    q("FROM Visits AS v GROUP BY v.person AS who GROUP AS g SELECT who, (FROM g AS x SELECT VALUE x.v.place ORDER BY x.v.cost DESC LIMIT 1) AS top",
      lambda: [{"who": w, "top": [max(rows, key=lambda v: v["cost"])["place"]]} for w, rows in PERSONS.items()]),
    q("SELECT VALUE (SELECT VALUE count(*) FROM g)[0] FROM Visits v GROUP BY v.place GROUP AS g", lambda: [len(rows) for rows in PLACES.values()]),
    q("SELECT v.person, (SELECT VALUE p.name FROM People p WHERE p.id = v.person) AS name, sum(v.cost) FROM Visits v GROUP BY v.person",
      lambda: [{"person": w, "name": [p["name"] for p in P if p["id"] == w], "$3": sum(v["cost"] for v in rows)} for w, rows in PERSONS.items()]),
    ordered("SELECT v.place, (SELECT VALUE x FROM [1, 2] x WHERE x < count(*)) AS less FROM Visits v GROUP BY v.place HAVING count(*) > 1 ORDER BY sum(v.minutes) DESC"
            .replace("count(*)) AS", "n) AS").replace("GROUP BY v.place", "GROUP BY v.place LET n = count(*)"),
            lambda: [{"place": w, "less": [x for x in (1, 2) if x < len(rows)]}
                     for w, rows in sorted(PLACES.items(), key=lambda item: -sum(v["minutes"] for v in item[1])) if len(rows) > 1]),
    q("SELECT VALUE w FROM Visits v GROUP BY v.place AS w GROUP AS g HAVING EXISTS (SELECT 1 FROM g WHERE g.v.minutes > 100)",
      lambda: [w for w, rows in PLACES.items() if any(v["minutes"] > 100 for v in rows)]),
    q("SELECT p.mixed, (SELECT VALUE v.id FROM Visits v WHERE v.id = p.mixed) AS v FROM People p WHERE p.id IN [1, 2] GROUP BY p.mixed",
      lambda: [{"mixed": 7, "v": [7]}, {"mixed": "seven", "v": []}]),
    q("SELECT w, g FROM Visits v LET c = v.cost * 2 WHERE v.person = 1 GROUP BY v.place AS w GROUP AS g",
      lambda: [{"w": v["place"], "g": [{"v": v, "c": 2 * v["cost"]}]} for v in V if v["person"] == 1]),
    q("SELECT w, g FROM Visits v WHERE v.person = 1 GROUP BY v.place AS w GROUP AS g(v.id AS i, v.cost AS c)",
      lambda: [{"w": v["place"], "g": [{"i": v["id"], "c": v["cost"]}]} for v in V if v["person"] == 1]),
    q("SELECT w, visitsOf(w) AS v FROM (SELECT VALUE p.id FROM People p) i GROUP BY i AS w",
      lambda: [{"w": p["id"], "v": [v for v in V if v["person"] == p["id"]]} for p in P]),
    q("SELECT VALUE sum((SELECT VALUE sum(v.minutes) FROM Visits v WHERE v.person = p.id)[0]) FROM People p",
      lambda: [sum(v["minutes"] for v in V if any(v["person"] == p["id"] for p in P))]),
    q("SELECT w, (SELECT VALUE x.v.id FROM g AS x ORDER BY x.v.id) FROM Visits v GROUP BY v.place AS w GROUP AS g",
      lambda: [{"w": w, "$2": sorted(v["id"] for v in rows)} for w, rows in PLACES.items()]),
]  # fmt: skip

UNTYPED: Final[list[Entry]] = [
    q("SELECT VALUE (SELECT VALUE x FROM p.extra.list AS x WHERE x.c > 1) FROM People p",
      lambda: [[x for o, _, x in _listed() if o is p and x["c"] > 1] for p in P]),
    q("SELECT VALUE (SELECT VALUE d * 2 FROM x.d AS d) FROM People p UNNEST p.extra.list AS x",
      lambda: [[2 * d for d in x.get("d", [])] for _, _, x in _listed()]),
    q("SELECT VALUE {'c': x.c, 'v': (SELECT VALUE v.place FROM Visits v WHERE v.id = x.c)} FROM People p UNNEST p.extra.list AS x",
      lambda: [{"c": x["c"], "v": [v["place"] for v in V if v["id"] == x["c"]]} for _, _, x in _listed()]),
    q("SELECT VALUE (SELECT VALUE v.id FROM Visits v ORDER BY abs(v.id - x.c) DESC, v.id LIMIT 1) FROM People p UNNEST p.extra.list AS x",
      lambda: [[max(V, key=lambda v: (abs(v["id"] - x["c"]), -v["id"]))["id"]] for _, _, x in _listed()]),
    q("SELECT VALUE (SELECT VALUE count(*) FROM Visits v WHERE v.id > x.c)[0] FROM People p UNNEST p.extra.list AS x",
      lambda: [sum(v["id"] > x["c"] for v in V) for _, _, x in _listed()]),
    q("SELECT VALUE x FROM People p UNNEST p.extra.list AS x WHERE EXISTS (SELECT 1 FROM Visits v WHERE v.id = x.c + 1)",
      lambda: [x for _, _, x in _listed() if any(v["id"] == x["c"] + 1 for v in V)]),
    q("SELECT VALUE x FROM People p UNNEST p.extra.list AS x WHERE x.c IN (SELECT VALUE v.id FROM Visits v WHERE v.id > x.c - 1)",
      lambda: [x for _, _, x in _listed() if any(v["id"] == x["c"] for v in V)]),
    q("SELECT VALUE (SELECT VALUE [x, y, (SELECT VALUE v.id FROM Visits v WHERE v.id = x.c + y)] FROM [1, 2] AS y ORDER BY y) FROM People p UNNEST p.extra.list AS x",
      lambda: [[[x, y, [v["id"] for v in V if v["id"] == x["c"] + y]] for y in (1, 2)] for _, _, x in _listed()]),
    q("SELECT VALUE (SELECT VALUE z FROM Things z WHERE z.n > 40 AND x IS VALUED)[0].open FROM (SELECT VALUE p.mixed FROM People p WHERE p.id = 3) AS x",
      lambda: [1]),
    # A double stays a double on its way into the subquery, and a text that looks like one stays as it is.
    q("SELECT VALUE (SELECT VALUE x FROM Things t WHERE t.n = 50) FROM [[7.0, 'a,7.0,\\\"7.5]', {'b,1.0': -0.25, 'c': [1e300, 2]}], 'x'] AS x",
      lambda: [[[7.0, 'a,7.0,"7.5]', {"b,1.0": -0.25, "c": [1e300, 2.0]}]], ["x"]]),
    q("SELECT VALUE (SELECT VALUE p.extra.level FROM Things t WHERE t.n = 50) FROM People p WHERE p.extra.level IS VALUED",
      lambda: [[p["extra"]["level"]] for p in P if known(get(p, "extra", "level"))]),
    q("SELECT VALUE p.id FROM People p WHERE p.extra.level IS KNOWN", lambda: [p["id"] for p in P if known(get(p, "extra", "level"))]),
    q("SELECT VALUE p.id FROM People p WHERE p.extra.level IS NOT DISTINCT FROM null", lambda: [p["id"] for p in P if not known(get(p, "extra", "level"))]),
    q("SELECT VALUE p.id FROM People p WHERE p.extra.level IS DISTINCT FROM null", lambda: [p["id"] for p in P if known(get(p, "extra", "level"))]),
]  # fmt: skip

# A collection function binds its array by a lambda, whose fields are no columns of a table outside.
NESTED: Final[list[Entry]] = [
    q("SELECT VALUE x FROM array_concat([1], [2]) AS x", lambda: [1, 2]),
    q("(SELECT VALUE 1) UNION ALL (SELECT VALUE x FROM [2, 3] x)", lambda: [1, 2, 3]),
    ordered("(SELECT p.id FROM People p) UNION ALL (SELECT 100 AS id) ORDER BY id DESC LIMIT 1", lambda: [{"id": 100}]),
    q("SELECT VALUE (SELECT VALUE array_concat([x], [9]) FROM [1] x)", lambda: [[[1, 9]]]),
    q("SELECT VALUE x FROM People p UNNEST array_concat(p.tags, ['z']) x", lambda: [x for p in P for x in [*p["tags"], "z"]]),
    q("SELECT VALUE (SELECT VALUE array_max([x, p.id]) FROM [2] x) FROM People p", lambda: [[max(2, p["id"])] for p in P]),
    q("SELECT VALUE (SELECT VALUE array_contains(p.tags, x) FROM ['x'] x) FROM People p", lambda: [["x" in p["tags"]] for p in P]),
    q("SELECT VALUE (SELECT VALUE array_sort(array_distinct(array_append(p.tags, x))) FROM ['x'] x) FROM People p",
      lambda: [[sorted({*p["tags"], "x"})] for p in P]),
    q("WITH a AS array_concat([1], [2]), b AS array_concat(a, [3]) SELECT VALUE (SELECT VALUE array_concat(b, [x]) FROM [4] x)", lambda: [[[1, 2, 3, 4]]]),
    q("SELECT VALUE (SELECT VALUE array_sum(array_append(p.extra.list[1].d, x)) FROM [1] x) FROM People p WHERE p.id = 1", lambda: [[31]]),
]  # fmt: skip

CALLED: Final[list[Entry]] = [
    q("visitsOf(1)", lambda: [v for v in V if v["person"] == 1]),
    q("$dataverse.visitsOf(3)", lambda: [v for v in V if v["person"] == 3]),
    q("inTown('Köln', 5)", lambda: [
        {"name": p["name"], "visits": [v["place"] for v in V if v["person"] == p["id"] and v["cost"] >= 5]}
        for p in P if p["address"]["city"] == "Köln"]),
    q("visitsOf((SELECT VALUE min(p.id) FROM People p)[0])", lambda: [v for v in V if v["person"] == 1]),
    q("double_it(4)", lambda: [8]),
    q("(visitsOf(2))", lambda: [v for v in V if v["person"] == 2]),
    q("SELECT VALUE [point('30.0, 30.0'), line('0 , 0 1, 1'), circle(t)] FROM ['1.0 , 2.0 0.5'] AS t",
      lambda: [[[30.0, 30.0], [[0.0, 0.0], [1.0, 1.0]], {"center": [1.0, 2.0], "radius": 0.5}]]),
    q("SELECT t.n, meta(t).`_active_timestamp` = active_timestamp(t) AS same, active_timestamp(t) <= current_datetime() AS past FROM Things t",
      lambda: [{"n": n, "same": True, "past": True} for n in _things()]),
    q("SELECT VALUE t.n FROM Things t WHERE active_timestamp(t) > previous_channel_time(t) AND active_timestamp(t) <= current_channel_time('any')", _things),
    q("SELECT VALUE previous_channel_time() = datetime('1970-01-01T00:00:00Z') AND current_channel_time() = current_datetime()", lambda: [True]),
    q("SELECT VALUE (SELECT VALUE u.n FROM Things u WHERE active_timestamp(u) > active_timestamp(t) ORDER BY u.n) FROM Things t WHERE t.n = 50", lambda: [[]]),
]  # fmt: skip


ENTRIES: Final[list[Entry]] = [*FIRST, *NUMBERED, *GROUPED, *UNTYPED, *NESTED, *CALLED]
