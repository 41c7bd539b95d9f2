# ruff: noqa: E501 (a query reads best in one line)
"""GROUP BY, aggregates, windows, functions of the catalog, CASE, higher-order functions, Metadata."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tests.corpus.data import PEOPLE as P
from tests.corpus.data import VISITS as V
from tests.corpus.entry import Entry, get, grouped, known, obj, ordered, q
from tests.support.literals import literal
from tests.support.reference import collections as model
from tocsin.rules.model.values import Point

_BY_PERSON: Final = grouped(V, lambda v: v["person"])
_BY_PLACE: Final = grouped(V, lambda v: v["place"])
_BY_CITY: Final = grouped(P, lambda p: p["address"]["city"])

GROUPS: Final[list[Entry]] = [
    q("SELECT v.place AS w, count(*) AS n, sum(v.cost) AS c, avg(v.minutes) AS m, min(v.id) AS a, max(v.id) AS z "
      "FROM Visits v GROUP BY v.place",
      lambda: [{"w": w, "n": len(g), "c": sum(v["cost"] for v in g), "m": sum(v["minutes"] for v in g) / len(g),
                "a": min(v["id"] for v in g), "z": max(v["id"] for v in g)} for w, g in _BY_PLACE.items()]),
    q("SELECT w, count(*) AS n FROM Visits v GROUP BY v.place AS w",
      lambda: [{"w": w, "n": len(g)} for w, g in _BY_PLACE.items()]),
    q("SELECT VALUE {'w': w, 'n': count(v.id)} FROM Visits v GROUP BY v.place AS w HAVING count(*) > 1",
      lambda: [{"w": w, "n": len(g)} for w, g in _BY_PLACE.items() if len(g) > 1]),
    ordered("SELECT w, sum(v.minutes) AS m FROM Visits v GROUP BY v.place AS w ORDER BY m DESC, w",
            lambda: sorted(({"w": w, "m": sum(v["minutes"] for v in g)} for w, g in _BY_PLACE.items()),
                           key=lambda r: (-r["m"], r["w"]))),
    q("SELECT w, (SELECT VALUE x.v.id FROM one.g x ORDER BY x.v.id) AS ids FROM (SELECT w, g FROM Visits v "
      "GROUP BY v.place AS w GROUP AS g) one",
      lambda: [{"w": w, "ids": sorted(v["id"] for v in g)} for w, g in _BY_PLACE.items()]),
    q("SELECT w, array_count(g) AS n FROM Visits v GROUP BY v.place AS w GROUP AS g",
      lambda: [{"w": w, "n": len(g)} for w, g in _BY_PLACE.items()]),
    q("SELECT p.age AS age, count(*) AS n FROM People p GROUP BY p.age",
      lambda: [{"age": 36, "n": 2}, {"age": None, "n": 1}, {"age": 26, "n": 1}, {"age": 56, "n": 1}, {"age": 0, "n": 1}]),
    q("SELECT level, count(*) AS n FROM People p WHERE p.extra.level IS VALUED GROUP BY p.extra.level AS level",
      lambda: [{"level": 3, "n": 1}, {"level": 5.5, "n": 1}, {"level": 1, "n": 1}]),
    q("SELECT c, y, count(*) AS n FROM People p GROUP BY p.address.city AS c, year(p.born) AS y",
      lambda: [{"c": c, "y": y, "n": len(g)} for (c, y), g in
               grouped(P, lambda p: (p["address"]["city"], p["born"].year)).items()]),
    q("SELECT count(*) AS n, count(p.age) AS a, count(p.nick) AS k, count(DISTINCT p.age) AS d, sum(p.age) AS s FROM People p",
      lambda: [{"n": 6, "a": 5, "k": 3, "d": 4, "s": 154}]),
    q("SELECT VALUE count(*) FROM People p WHERE false", lambda: [0]),
    q("SELECT sum(p.age) AS s, max(p.name) AS m FROM People p WHERE p.id > 99", lambda: [{"s": None, "m": None}]),
    q("SELECT VALUE max(p.born) FROM People p", lambda: [max(p["born"] for p in P)]),
    q("SELECT VALUE min(v.at) FROM Visits v", lambda: [min(v["at"] for v in V)]),
    q("SELECT VALUE max(p.extra.level) FROM People p", lambda: [5.5]),
    q("SELECT VALUE sum(p.extra.level) FROM People p", lambda: [9.5]),
    q("SELECT v.place, count(*) AS n FROM Visits v GROUP BY v.place ORDER BY n DESC, place LIMIT 1",
      lambda: [{"place": "park", "n": 3}]),
    q("SELECT i.sku AS s, sum(i.n) AS n FROM Visits v UNNEST v.items i GROUP BY i.sku",
      lambda: [{"s": s, "n": sum(i["n"] for i in g)} for s, g in
               grouped((i for v in V for i in v["items"]), lambda i: i["sku"]).items()]),
    q("SELECT VALUE [c, names] FROM People p GROUP BY p.address.city AS c LET names = sort_array(collect_list(p.name))",
      lambda: [[c, sorted(p["name"] for p in g)] for c, g in _BY_CITY.items()]),
    q("SELECT p.id AS id, array_sum((SELECT VALUE v.minutes FROM Visits v WHERE v.person = p.id)) AS m FROM People p",
      lambda: [{"id": p["id"], "m": sum(v["minutes"] for v in _BY_PERSON[p["id"]]) if p["id"] in _BY_PERSON else None}
               for p in P]),
    q("SELECT VALUE [array_count(p.marks), array_sum(p.marks), array_max(p.marks), array_min(p.marks)] FROM People p "
      "WHERE p.id = 1", lambda: [[3, 6, 3, 1]]),
    q("SELECT VALUE array_avg(p.marks) FROM People p WHERE p.id IN [1, 3]", lambda: [2.0, None]),
    q("SELECT VALUE [coll_sum([1, 2, null]), coll_sum([1, 2]), array_sum([1, 2, null])]", lambda: [[None, 3, 3]]),
]  # fmt: skip


def _rank(rows: list[dict[str, object]], row: dict[str, object], key: str) -> int:
    return 1 + sum(1 for other in rows if other[key] > row[key])  # type: ignore[operator]


# 7 and 7.0 are one value, 7 and "7" are two, and 1e-30 is not 0.
_KINDS: Final = (
    "[7, '7', 7.0, true, 1, 'true', 1e-30, 0, 9223372036854775807, 9223372036854775806, [7], {'a': 7}, 'b', null]"
)

KINDS: Final[list[Entry]] = [
    q(f"SELECT VALUE count(*) FROM {_KINDS} x GROUP BY x", lambda: [2] + [1] * 12),
    q(f"SELECT x, count(*) AS n FROM {_KINDS} v GROUP BY v AS x HAVING count(*) > 1", lambda: [{"x": 7, "n": 2}]),
    q(f"SELECT VALUE x FROM {_KINDS} x WHERE x = 7", lambda: [7, 7.0]),
    q(f"SELECT VALUE x FROM {_KINDS} x WHERE x = '7'", lambda: ["7"]),
    q(f"SELECT VALUE x FROM {_KINDS} x WHERE x = true", lambda: [True]),
    q(f"SELECT VALUE x FROM {_KINDS} x WHERE x > 1", lambda: [7, 7.0, 2**63 - 1, 2**63 - 2]),
    q(f"SELECT VALUE x FROM {_KINDS} x WHERE x < 'b'", lambda: ["7"]),
    q(f"SELECT VALUE x FROM {_KINDS} x WHERE x = 9223372036854775806", lambda: [2**63 - 2]),
    q(f"SELECT VALUE count(*) FROM {_KINDS} x, {_KINDS} y WHERE x = y", lambda: [4 + 11]),
    q(f"SELECT VALUE x + 1 FROM {_KINDS} x WHERE x < 8", lambda: [8, 8.0, 2, 1e-30 + 1, 1]),
    q(f"SELECT VALUE -x FROM {_KINDS} x WHERE x = 7", lambda: [-7, -7.0]),
    q(f"SELECT max(x) AS most, min(x) AS least FROM {_KINDS} x WHERE x < 7", lambda: [{"most": 1.0, "least": 0.0}]),
    q(f"SELECT VALUE count(*) FROM {_KINDS} x WHERE x", lambda: [1]),
    q(
        "SELECT DISTINCT VALUE x FROM [7.5, 7.0, '7', 7.0, null, [7.0, 'a'], [7.0, 'a'], {'b': [7.0, 'a']}] x",
        lambda: [7.5, 7.0, "7", None, [7.0, "a"], {"b": [7.0, "a"]}],
    ),
    ordered(
        f"SELECT DISTINCT v.x AS x FROM (SELECT x AS x FROM {_KINDS} x WHERE x < 7 OR x = '7') v ORDER BY x DESC LIMIT 3",
        lambda: [{"x": "7"}, {"x": 1}, {"x": 1e-30}],
    ),
    q(
        "SELECT VALUE [{'x': [7.0, 'a', {'y': -0.0}]}, 'b'] FROM [1] one",
        lambda: [[{"x": [7.0, "a", {"y": -0.0}]}, "b"]],
    ),
]

# Objects of different shapes are untyped, as undeclared fields are.
_PLACES: Final[list[dict[str, Any]]] = [
    {
        "id": 1,
        "shelters": [Point(1.0, 2.0), Point(3.0, 4.0)],
        "names": ["a", "b"],
        "counts": [3, 1, None, 2],
        "at": Point(0.0, 0.0),
    },
    {"id": 2, "shelters": None, "names": "none", "counts": [], "n": 108},
    {"id": 3},
]
_IN_PLACES: Final = f"FROM {literal(_PLACES)} r"


def _of(field: str, function: Callable[..., Any], *more: Any) -> Callable[[], list[Any]]:
    """One object per place with the answer `v`, which is left out where it is MISSING."""
    return lambda: [obj(id=place["id"], v=function(get(place, field), *more)) for place in _PLACES]


COLLECTIONS: Final[list[Entry]] = [
    *(q(f"SELECT VALUE {{'id': r.id, 'v': {text}}} {_IN_PLACES}", expected) for text, expected in [
        ("array_count(r.shelters)", _of("shelters", model.array_count)),
        ("coll_count(r.counts)", _of("counts", model.strict_count)),
        ("strict_count(r.counts)", _of("counts", model.strict_count)),
        ("array_sum(r.names)", _of("names", model.array_sum)),
        ("array_sum(r.counts)", _of("counts", model.array_sum)),
        ("array_avg(r.counts)", _of("counts", model.array_avg)),
        ("array_max(r.names)", _of("names", model.array_max)),
        ("array_concat(r.shelters, [r.at])", lambda: [
            {"id": 1, "v": [Point(1.0, 2.0), Point(3.0, 4.0), Point(0.0, 0.0)]}, {"id": 2, "v": None}, {"id": 3}]),
        ("concat(r.shelters, r.shelters)", lambda: [
            {"id": 1, "v": _PLACES[0]["shelters"] * 2}, {"id": 2, "v": None}, {"id": 3}]),
        ("concat(r.names, r.names)", lambda: [
            {"id": 1, "v": ["a", "b", "a", "b"]}, {"id": 2, "v": "nonenone"}, {"id": 3}]),
        ("array_sort(r.counts)", _of("counts", model.array_sort)),
        ("array_position(r.names, 'b')", _of("names", model.array_position, "b")),
        ("array_contains(r.counts, 2.0)", _of("counts", model.array_contains, 2.0)),
        ("array_distinct(array_concat(r.counts, r.counts))", lambda: [
            {"id": 1, "v": [3, 1, None, 2]}, {"id": 2, "v": []}, {"id": 3}]),
        ("array_star([r, {'id': 7}]).id", lambda: [{"id": place["id"], "v": [place["id"], 7]} for place in _PLACES]),
    ]),
    q("SELECT VALUE array_sum([v.at]) FROM Visits v", lambda: [None for _ in V]),
    q("SELECT sum(p.name) AS a, avg(p.born) AS b, sum(v.at) AS c FROM People p, Visits v", lambda: [{"a": None, "b": None, "c": None}]),
    q("SELECT min(x) AS a, max(x) AS b, sum(x) AS c FROM [1, 2, 'a', null] x", lambda: [{"a": None, "b": None, "c": 3}]),
    q("SELECT min(x) AS a, max(x) AS b, sum(x) AS c FROM [1, 2, null] x", lambda: [{"a": 1, "b": 2, "c": 3}]),
    q("SELECT x AS x, sum(y) OVER () AS s, max(y) OVER () AS m FROM [1, 2] x UNNEST ['b', x] y",
      lambda: [{"x": x, "s": 3, "m": None} for x in (1, 2) for _ in range(2)]),
    # Values of incompatible types are neither equal nor unequal, declared or not.
    q("SELECT VALUE p.id FROM People p WHERE p.id = '01' OR p.id = 'x' OR p.name = 5 OR p.born > 5 OR p.extra.level = '3'", list),
    q("SELECT VALUE p.id FROM People p WHERE p.id <> 'x' OR NOT (p.name = 5)", list),
    q("SELECT VALUE p.id FROM People p WHERE p.id IN ['1', 'x'] OR p.name BETWEEN 1 AND 9", list),
    q("SELECT VALUE x FROM named(double_it(1)) x", list),
    q("SELECT p.id AS p, v.id AS v FROM People p JOIN Visits v ON p.name = v.person", list),
    q("SELECT VALUE v.id FROM Visits v WHERE v.place IN (SELECT VALUE p.id FROM People p)", list),
    q("SELECT VALUE v.id FROM Visits v WHERE v.place NOT IN (SELECT VALUE p.id FROM People p)", list),
    q("SELECT VALUE p.id FROM People p WHERE contains(p.id, '1') OR p.id LIKE '%'", list),
    q(f"SELECT VALUE r.id {_IN_PLACES} WHERE contains(r.n, '0') OR r.n = '108' OR r.n LIKE '1%' OR r.n < 'a'", list),
    q(f"SELECT VALUE CASE r.n WHEN '108' THEN 1 WHEN 108 THEN 2 ELSE 3 END {_IN_PLACES}", lambda: [3, 2, 3]),
    q(f"SELECT VALUE r.id {_IN_PLACES} WHERE SOME x IN r.counts SATISFIES x = '3'", list),
]  # fmt: skip

WINDOWS: Final[list[Entry]] = [
    q("SELECT v.id AS id, row_number() OVER (PARTITION BY v.person ORDER BY v.at) AS n FROM Visits v",
      lambda: [{"id": v["id"], "n": 1 + sum(o["at"] < v["at"] for o in _BY_PERSON[v["person"]])} for v in V]),
    q("SELECT v.id AS id, rank() OVER (ORDER BY v.cost DESC) AS r FROM Visits v",
      lambda: [{"id": v["id"], "r": _rank(V, v, "cost")} for v in V]),
    q("SELECT v.id AS id, sum(v.cost) OVER (PARTITION BY v.place) AS total FROM Visits v",
      lambda: [{"id": v["id"], "total": sum(o["cost"] for o in _BY_PLACE[v["place"]])} for v in V]),
    q("SELECT v.id AS id, lag(v.id) OVER (ORDER BY v.id) AS before FROM Visits v",
      lambda: [{"id": v["id"], "before": v["id"] - 1 if v["id"] > 1 else None} for v in V]),
    q("SELECT v.id AS id, sum(v.minutes) OVER (ORDER BY v.id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS so_far "
      "FROM Visits v", lambda: [{"id": v["id"], "so_far": sum(o["minutes"] for o in V if o["id"] <= v["id"])} for v in V]),
]  # fmt: skip

FUNCTIONS: Final[list[Entry]] = [
    q("SELECT VALUE f FROM visitsOf(1) f", lambda: _BY_PERSON[1]),
    q("SELECT VALUE visitsOf(2)", lambda: [_BY_PERSON[2]]),
    q("SELECT p.id AS id, costOf(p.id) AS c FROM People p",
      lambda: [{"id": p["id"], "c": [sum(v["cost"] for v in _BY_PERSON[p["id"]]) if p["id"] in _BY_PERSON else None]} for p in P]),
    # The parameter `person` is not the field of the same name, else every visit would do.
    q("SELECT p.id AS id, f.id AS v FROM People p, visitsOf(p.id) f",
      lambda: [{"id": p["id"], "v": v["id"]} for p in P for v in _BY_PERSON.get(p["id"], [])]),
    q("SELECT VALUE named('Ada')", lambda: [[1]]),
    q("SELECT VALUE x FROM named('nobody') x", list),
    q("SELECT VALUE quadruple(p.id) FROM People p", lambda: [4 * p["id"] for p in P]),
    q("SELECT VALUE none() + none()", lambda: [84]),
    q("SELECT VALUE double_it(p.extra.level) FROM People p WHERE p.extra.level IS VALUED", lambda: [6, 11.0, 2]),
    # The caller's p is not the body's p.
    q("SELECT VALUE h FROM People p, hidden(p.name) h WHERE p.id = 6", lambda: [[1, "名前"], [2, "名前"]]),
    q("SELECT VALUE hidden(p.id * 100) FROM People p WHERE p.id = 3", lambda: [[[1, 300], [2, 300]]]),
    q("SELECT VALUE f FROM inTown('Köln', 5) f", lambda: [{"name": "Ada", "visits": ["park"]}, {"name": "Ben", "visits": ["park"]}]),
    q("SELECT c AS c, inTown(c, 0.0) AS f FROM ['Paris', 'Rome'] c",
      lambda: [{"c": "Paris", "f": [{"name": "Çelik", "visits": ["zoo", "park"]}, {"name": "dora", "visits": ["zoo"]}]},
               {"c": "Rome", "f": []}]),
    q("SELECT VALUE label(p) FROM People p",
      lambda: ["old" if (get(p, "age") or 0) >= 30 else "young" for p in P]),
    q("SELECT VALUE pair(p.id, [p.name]) FROM People p WHERE p.id < 3",
      lambda: [{"a": p["id"], "b": [p["name"]]} for p in P[:2]]),
    q("SELECT VALUE pair(pair(1, 2), p.tags).a.b FROM People p WHERE p.id = 1", lambda: [2]),
    q("SELECT VALUE f.b FROM People b LET f = pair(b.id, b.name) WHERE b.id = 1", lambda: ["Ada"]),
]  # fmt: skip

VALUES: Final[list[Entry]] = [
    q("SELECT VALUE CASE WHEN p.age > 30 THEN 'old' WHEN p.age IS UNKNOWN THEN 'unknown' ELSE p.name END FROM People p",
      lambda: ["unknown" if not known(get(p, "age")) else "old" if p["age"] > 30 else p["name"] for p in P]),
    q("SELECT VALUE CASE p.id WHEN 1 THEN 'one' WHEN 2 THEN 2 END FROM People p WHERE p.id < 4", lambda: ["one", 2, None]),
    q("SELECT p.id AS id, p.age + 1 AS a, p.score * 2 AS s, p.age / 2 AS h, p.age % 10 AS m, -p.age AS n FROM People p",
      lambda: [obj(id=p["id"], a=_map(get(p, "age"), lambda a: a + 1), s=_map(get(p, "score"), lambda s: s * 2),
                   h=_map(get(p, "age"), lambda a: a / 2), m=_map(get(p, "age"), lambda a: a % 10),
                   n=_map(get(p, "age"), lambda a: -a)) for p in P]),
    q("SELECT VALUE p.extra.level + 1 FROM People p WHERE p.extra.level IS VALUED", lambda: [4, 6.5, 2]),
    q("SELECT VALUE p.extra.level / 2 FROM People p WHERE p.extra.level IS VALUED", lambda: [1.5, 2.75, 0.5]),
    q("SELECT VALUE upper(p.name) || '!' FROM People p", lambda: [p["name"].upper() + "!" for p in P]),
    q("SELECT VALUE [length(p.name), substr(p.name, 1, 2), reverse(p.name)] FROM People p WHERE p.id = 6",
      lambda: [[2, "名前", "前名"]]),
    q("SELECT VALUE upper(p.nick) FROM People p WHERE p.nick IS VALUED", lambda: ["AD", "D", ""]),
    q("SELECT VALUE transform(p.tags, t -> upper(t)) FROM People p", lambda: [[t.upper() for t in p["tags"]] for p in P]),
    q("SELECT VALUE filter(p.marks, m -> m > 1) FROM People p WHERE p.id = 1", lambda: [[3, 2]]),
    q("SELECT VALUE transform(p.tags, (t, i) -> concat(t, string(i))) FROM People p WHERE p.id = 4", lambda: [["x0", "x1", "z2"]]),
    q("SELECT VALUE aggregate(p.marks, 0L, (a, m) -> a + m) FROM People p", lambda: [sum(p["marks"]) for p in P]),
    q("SELECT VALUE exists(p.tags, t -> t = p.nick || 'x') FROM People p WHERE p.id = 5", lambda: [False]),
    q("SELECT VALUE array_sort(p.marks) FROM People p", lambda: [sorted(p["marks"]) for p in P]),
    q("SELECT VALUE array_contains(p.tags, 'x') FROM People p", lambda: ["x" in p["tags"] for p in P]),
    q("SELECT VALUE coalesce(p.nick, p.name) FROM People p",
      lambda: [p["nick"] if known(get(p, "nick")) else p["name"] for p in P]),
    q("SELECT VALUE if_missing_or_null(p.age, -1) FROM People p",
      lambda: [p["age"] if known(get(p, "age")) else -1 for p in P]),
    q("SELECT VALUE CAST(p.id AS STRING) || CAST(CAST('12' AS INT) AS STRING) FROM People p WHERE p.id = 3", lambda: ["312"]),
    q("SELECT VALUE CAST(p.extra.level AS DOUBLE) FROM People p WHERE p.id IN [1, 3]", lambda: [3.0, 5.5]),
    q("SELECT VALUE v.at + duration('P1M') FROM Visits v WHERE v.id = 4", lambda: ["2026-03-28T23:59:59.999999Z"]),
    q("SELECT VALUE v.at - duration('PT1S') FROM Visits v WHERE v.id = 5", lambda: ["2026-02-28T23:59:59Z"]),
    q("SELECT VALUE p.born + duration('P1Y') FROM People p WHERE p.id = 3", lambda: ["2001-02-28"]),
    q("SELECT VALUE [a.id, b.id] FROM Visits a, Visits b WHERE b.at - a.at = duration('PT25H30M') ", lambda: [[1, 2], [1, 3]]),
    q("SELECT VALUE year(p.born) * 100 + month(p.born) FROM People p",
      lambda: [p["born"].year * 100 + p["born"].month for p in P]),
    q("SELECT VALUE d.DatasetName FROM Metadata.`Dataset` d WHERE d.DataverseName = '$dataverse' ORDER BY d.DatasetName",
      lambda: ["People", "Things", "Visits", "Zones"]),
    q("SELECT VALUE [i.IndexName, i.SearchKey] FROM Metadata.`Index` i WHERE i.DataverseName = '$dataverse' AND "
      "NOT i.IsPrimary", lambda: [["byCity", [["address", "city"]]]]),
    q("SELECT VALUE i.SearchKey FROM Metadata.`Index` i, Metadata.`Dataset` d WHERE d.DataverseName = '$dataverse' AND "
      "i.DataverseName = d.DataverseName AND i.IndexName = d.DatasetName AND d.DatasetName = 'Things' AND "
      "i.SearchKey = d.InternalDetails.PrimaryKey", lambda: [[["key", "a"], ["key", "b"]]]),
    q("SELECT VALUE f.FieldName FROM Metadata.`Dataset` d, Metadata.`Datatype` t UNNEST t.Derived.Record.Fields f "
      "WHERE d.DataverseName = '$dataverse' AND d.DatasetName = 'Things' AND t.DataverseName = d.DatatypeDataverseName "
      "AND t.DatatypeName = d.DatatypeName", lambda: ["key", "n"]),
    q("SELECT VALUE f.Arity FROM Metadata.`Function` f WHERE f.DataverseName = '$dataverse' AND f.Name = 'inTown'", lambda: ["2"]),
    q("SELECT VALUE [d.PrimaryKey, d.IsActive] FROM Metadata.`Dataset` d WHERE d.DataverseName = '$dataverse' AND "
      "d.DatasetName = 'Things'", lambda: [[[["key", "a"], ["key", "b"]], True]]),
    q("SELECT VALUE d.Location LIKE '/%/datasets/%' FROM Metadata.`Dataset` d WHERE d.DataverseName = '$dataverse' AND "
      "d.DatasetName = 'Things'", lambda: [True]),
]  # fmt: skip


def _map(value: object, change: object) -> object:
    """Arithmetic on what is unknown gives NULL."""
    return change(value) if known(value) else None  # type: ignore[operator]


ENTRIES: Final = [*GROUPS, *KINDS, *COLLECTIONS, *WINDOWS, *FUNCTIONS, *VALUES]
