"""The shared query of a channel against each interest alone, in plain Python: whatever ties records to interests."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from random import Random
from typing import Any

from hypothesis import given
from pyspark.sql import SparkSession

from tests.support.channel_compiler import (
    NOW,
    PREVIOUS,
    REPORTS,
    SHELTERS,
    USERS,
    Case,
    FakeDatasets,
    FunctionOf,
    Record,
    check,
    compiled,
    executed,
    shown,
    text,
)  # fmt: skip
from tests.support.channel_worlds import BIGS, KINDS, LEVELS, TAGS, USER_NAMES, level, seeds, tried, world
from tocsin.pipeline.channels.interests import InterestLimits, InterestTable
from tocsin.rules.model import types as t
from tocsin.rules.model.values import Duration


def run(spark: SparkSession, seed: int, cases: Sequence[Case]) -> None:
    made = world(seed)
    with shown(spark, made):
        for case in cases:
            check(spark, case, made, seed)


def ids(test: Callable[..., Any]) -> Callable[..., list[Any]]:
    """The ids of the new reports for which the test is true (and not unknown)."""
    return lambda world, *values: [r["id"] for r in world.new(REPORTS) if test(r, *values) is True]


def each(*values: Any) -> Callable[[Random, FakeDatasets], Sequence[Sequence[Any]]]:
    return lambda _rng, _world: [(item,) for item in dict.fromkeys(values)]


def many(made: Callable[[Random], tuple[Any, ...]], count: int = 60) -> Callable[[Random, FakeDatasets], Sequence[Any]]:
    return lambda rng, _world: [made(rng) for _ in range(count)]


def kind(rng: Random) -> str:
    return rng.choice((*KINDS, "nobody's"))


def known(value: Any, test: Callable[[Any], bool]) -> bool:
    return value is not None and test(value)


def like(value: str, pattern: str) -> bool:
    """A backslash that escapes nothing makes a pattern that matches nothing."""
    if not re.fullmatch(r"(?:[^\\]|\\[\\%_])*", pattern, re.DOTALL):
        return False
    parts = re.findall(r"\\[\\%_]|.", pattern, re.DOTALL)
    regex = "".join({"%": ".*", "_": "."}.get(part, re.escape(part[-1])) for part in parts)
    return re.fullmatch(regex, value, re.DOTALL) is not None


# ---------------------------------------------------------------- what ties records to interests

EQUALITY = [
    Case(["kind"], "select value r.id from Reports r where r.kind = kind", each(*KINDS, "nobody's"),
         ids(lambda r, k: r["kind"] == k)),
    Case(["id", "severity"], "select value r.id from Reports r where r.note = id and severity = r.severity",
         many(lambda rng: (kind(rng), rng.randint(-3, 12)), 200),
         ids(lambda r, note, s: r.get("note") == note and r["severity"] == s)),
    Case(["b"], "select value r.id from Reports r where r.big = b", each(*BIGS, *range(-20, 20)),
         ids(lambda r, b: r["big"] == b)),
    Case(["d"], "select value r.id from Reports r where r.level = d", each(*LEVELS), ids(lambda r, d: r["level"] == d)),
    Case(["x"], "select value r.id from Reports r where r.extra = x",
         lambda _rng, _world: [(1,), ("1",), (True,), (2**53,), (2**53 + 1,), ("名",)],
         ids(lambda r, x: (type(x) is bool and r.get("extra") is True)
             or (type(x) is not bool and type(r.get("extra")) is not bool and r.get("extra") == x))),
    Case(["kind", "n"], "select value r.id from Reports r where lower(r.kind) = kind and r.severity + 1 = n * 2",
         many(lambda rng: (kind(rng), rng.randint(-2, 6)), 100),
         ids(lambda r, k, n: r["kind"].lower() == k and r["severity"] + 1 == n * 2)),
]  # fmt: skip

_DURATIONS = [
    Duration(months, days * 86_400_000_000 + more)
    for months in (0, 1, 2) for days in (-30, 0, 30) for more in (0, 1, 1_000_000)
]  # fmt: skip


def _in_order(one: Duration) -> tuple[int, int]:
    """A month counts 30 days, and of two that come out the same the one with more months is later."""
    return one.months * 30 * 86_400_000_000 + one.micros, one.months


RANGES = [
    Case(["s"], "select value r.id from Reports r where r.severity >= s", each(*range(-5, 14)),
         ids(lambda r, s: r["severity"] >= s)),
    Case(["d"], "select value r.id from Reports r where d > r.level", each(*LEVELS, 1.0, -2.5, 1e6),
         ids(lambda r, d: r["level"] < d)),
    Case(["k"], "select value r.id from Reports r where r.note > k", each(*KINDS),
         ids(lambda r, k: known(r.get("note"), lambda note: note.encode() > k.encode()))),
    Case(["a", "b"], "select value r.id from Reports r where r.big between a and b",
         lambda _rng, _world: [(a, b) for a in BIGS for b in BIGS], ids(lambda r, a, b: a <= r["big"] <= b)),
    Case(["a", "b"], "select value r.id from Reports r where r.level > a and r.level <= b and r.kind <> 'fire'",
         many(lambda rng: (level(rng), level(rng)), 150),
         ids(lambda r, a, b: a < r["level"] <= b and r["kind"] != "fire")),
    Case(["x"], "select value r.id from Reports r where r.low <= x and x < r.high",
         many(lambda rng: (level(rng),), 150),
         ids(lambda r, x: r["low"] <= x < r["high"])),
    Case(["a", "b"], "select value r.id from Reports r where r.at >= a and r.at < b",
         many(lambda rng: tuple(NOW - timedelta(microseconds=rng.choice((0, 1, 2 * 10**7, 10**9))) for _ in "ab"), 16),
         ids(lambda r, a, b: a <= r["at"] < b)),
    Case(["t"], "select value r.id from Reports r where time(r.at) >= t",
         lambda _rng, _world: [((NOW - timedelta(seconds=s)).time(),) for s in (0, 20, 30, 1000)],
         ids(lambda r, at: r["at"].time() >= at)),
    Case(["a", "b"], "select value r.id from Reports r where r.note between a and b",
         lambda _rng, _world: [(a, b) for a in KINDS for b in KINDS],
         ids(lambda r, a, b: known(r.get("note"), lambda note: a.encode() <= note.encode() <= b.encode()))),
    Case(["a", "b"], "select value r.id from Reports r where date(r.at) >= a and date(r.at) < b",
         many(lambda rng: tuple((NOW - timedelta(days=rng.randint(-2, 2))).date() for _ in "ab"), 16),
         ids(lambda r, a, b: a <= r["at"].date() < b)),
    Case(["a", "b"], "select value r.id from Reports r where time(r.at) between a and b",
         many(lambda rng: tuple((NOW - timedelta(seconds=rng.choice((0, 20, 30, 1000)))).time() for _ in "ab"), 16),
         ids(lambda r, a, b: a <= r["at"].time() <= b)),
    Case(["k", "m"], "select value r.id from Reports r where r.severity between k - m and k + m",
         many(lambda rng: (rng.choice((rng.randint(-3, 12), 2**31 - 1)), rng.choice((rng.randint(-1, 4), 2**31 + 2)))),
         ids(lambda r, k, m: k - m <= r["severity"] <= k + m)),
    Case(["k", "m"], "select value r.id from Reports r where r.level between k - m and k + m",
         many(lambda rng: (level(rng), rng.choice((-1.0, 0.0, 5.0, 1e6)))),
         ids(lambda r, k, m: k - m <= r["level"] <= k + m)),
    Case(["p"], "select value r.id from Reports r where r.level >= cast(p as double)",
         each("1", "-2.5", "1e6", "x", "", "nan", "-1e999", "1e999"),
         ids(lambda r, p: p not in ("x", "") and r["level"] >= float(p.replace("nan", "inf")))),
    Case(["p"], "select value r.id from Reports r where r.big > 2 * p", each(*range(-20, 20), 2**52, -(2**52)),
         ids(lambda r, p: r["big"] > 2 * p)),
    Case(["p"], "select value r.id from Reports r where r.note <= upper(p)", each(*KINDS),
         ids(lambda r, p: known(r.get("note"), lambda note: note.encode() <= p.upper().encode()))),
    Case(["p"], "select value r.id from Reports r where r.level <= p", each(*BIGS, *range(-10, 10)),
         declared={"p": t.BIGINT}, told=ids(lambda r, p: r["level"] <= float(p))),
    Case(["d"], "select value r.id from Reports r where r.lasts >= d", each(*_DURATIONS),
         ids(lambda r, d: _in_order(r["lasts"]) >= _in_order(d))),
    Case(["a", "b"], "select value r.id from Reports r where r.lasts between a and b",
         lambda _rng, _world: [(a, b) for a in _DURATIONS for b in _DURATIONS],
         ids(lambda r, a, b: _in_order(a) <= _in_order(r["lasts"]) <= _in_order(b))),
]  # fmt: skip

_PATTERNS = ("fire", "f%", "%", "", "_i%", "%o%", "a\\%b", "a\\\\b", "a\\b", "a_b", "%\\", "x%y", "x" * 40, "名_", "n_")
MEMBERS = [
    Case(["k"], "select value r.id from Reports r where r.kind in k",
         lambda rng, _world: [([],), *([rng.choices(KINDS, k=n)] for n in (1, 2, 5, 9))],
         ids(lambda r, k: r["kind"] in k)),
    Case(["x"], "select value r.id from Reports r where x in r.tags", each(*TAGS, "z"),
         ids(lambda r, x: x in r["tags"])),
    Case(["a", "b"], "select value r.id from Reports r where r.note in (a, b, 'fire')",
         many(lambda rng: (kind(rng), kind(rng))), ids(lambda r, a, b: r.get("note") in (a, b, "fire"))),
    Case(["k"], "select value r.id from Reports r where k in [r.kind, r.note]", each(*KINDS),
         ids(lambda r, k: k in (r["kind"], r.get("note")))),
    Case(["n"], "select value r.id from Reports r where array_contains(r.numbers, n)", each(*range(14)),
         ids(lambda r, n: n in r["numbers"])),
    Case(["p"], "select value r.id from Reports r where r.kind like p", each(*_PATTERNS),
         ids(lambda r, p: like(r["kind"], p))),
    Case(["p"], "select value r.id from Reports r where starts_with(r.note, p)", each(*KINDS, "f", "x", "a"),
         ids(lambda r, p: known(r.get("note"), lambda note: note.startswith(p)))),
    Case(["u"], "select value r.id from Reports r where u in (select value p.name from Users p where p.kind = r.kind)",
         each(*USER_NAMES, "nobody"),
         lambda w, u: [r["id"] for r in w.new(REPORTS)
                       if any(p["name"] == u and p["kind"] == r["kind"] for p in w.all(USERS))]),
    Case(["name"], "select value r.id from Reports r where r.severity > 3 and exists (select value p from Users p"
         " where p.name = name and kind in r.tags) and is_new(r)", each(*USER_NAMES),
         lambda w, u: [r["id"] for r in w.new(REPORTS) if r["severity"] > 3
                       and any(p["name"] == u and p["kind"] in r["tags"] for p in w.all(USERS))]),
]  # fmt: skip

# Several users may be why a report concerns an interest; it is told once.
_REACHED = (
    "from Reports r where exists (select value p from Users p where p.kind = r.kind and p.name like u) and is_new(r)"
)
_REACHING = each("%", "user%", "user _", "user 1%", "User%", "名%", "none")


def _reached(w: FakeDatasets, u: str) -> list[Record]:
    kinds = {p["kind"] for p in w.all(USERS) if like(p["name"], u)}
    return sorted((r for r in w.new(REPORTS) if r["kind"] in kinds), key=lambda r: (-r["severity"], r["id"]))


REACHED = [
    Case(["u"], f"select value r.id {_REACHED}", _REACHING, lambda w, u: [r["id"] for r in _reached(w, u)]),
    Case(["u"], f"select r.id, u {_REACHED}", _REACHING,
         lambda w, u: [{"id": r["id"], "u": u} for r in _reached(w, u)]),
    Case(["u"], f"select value r.id {_REACHED} order by r.severity desc, r.id limit 4", _REACHING,
         lambda w, u: [r["id"] for r in _reached(w, u)][:4], ordered=True),
    Case(["u"], f"select distinct value r.severity {_REACHED} order by r.severity desc", _REACHING,
         lambda w, u: sorted({r["severity"] for r in _reached(w, u)}, reverse=True), ordered=True),
]  # fmt: skip

EITHER = [
    Case(["k", "n"], "select value r.id from Reports r where r.kind = k or r.severity = n or r.big = n",
         many(lambda rng: (kind(rng), rng.choice((rng.randint(-3, 12), *BIGS)))),
         ids(lambda r, k, n: r["kind"] == k or r["severity"] == n or r["big"] == n)),
    Case(["d", "k"], "select value r.id from Reports r where r.level = d or r.severity = d or r.note = k",
         many(lambda rng: (rng.choice((*LEVELS, 3.0, 4.0)), kind(rng))),
         ids(lambda r, d, k: r["level"] == d or r["severity"] == d or r.get("note") == k)),
    Case(["x", "s", "p"], "select value r.id from Reports r where x in r.tags or (r.severity >= s and r.kind <> 'fi')"
         " or r.note like p",
         many(lambda rng: (rng.choice(TAGS), rng.randint(5, 14), rng.choice(_PATTERNS))),
         ids(lambda r, x, s, p: x in r["tags"] or (r["severity"] >= s and r["kind"] != "fi")
             or known(r.get("note"), lambda note: like(note, p)))),
    Case(["k", "n"], "select value r.id from Reports r"
         " where (r.severity > 2 and (r.kind = k or r.note = k)) or r.big = n",
         many(lambda rng: (kind(rng), rng.choice((rng.randint(-3, 12), *BIGS)))),
         ids(lambda r, k, n: (r["severity"] > 2 and k in (r["kind"], r.get("note"))) or r["big"] == n)),
    Case(["k", "s"], "select value r.id from Reports r where r.kind in k or s in r.numbers",
         many(lambda rng: (rng.choices(KINDS, k=rng.randint(0, 3)), rng.randint(0, 13))),
         ids(lambda r, k, s: r["kind"] in k or s in r["numbers"])),
]  # fmt: skip


@tried
@given(seed=seeds)
def test_equal_values_meet_and_no_others(spark: SparkSession, seed: int) -> None:
    run(spark, seed, EQUALITY)


@tried
@given(seed=seeds)
def test_ranges_meet_what_lies_in_them(spark: SparkSession, seed: int) -> None:
    run(spark, seed, RANGES)


@tried
@given(seed=seeds)
def test_members_and_patterns_meet_what_they_describe(spark: SparkSession, seed: int) -> None:
    run(spark, seed, MEMBERS)


@tried
@given(seed=seeds)
def test_what_exists_several_times_is_told_once(spark: SparkSession, seed: int) -> None:
    run(spark, seed, REACHED)


@tried
@given(seed=seeds)
def test_alternatives_meet_once_however_many_of_them_hold(spark: SparkSession, seed: int) -> None:
    run(spark, seed, EITHER)


# ---------------------------------------------------------------- what an interest is told


def _of_kind(w: FakeDatasets, k: str) -> list[Record]:
    return [r for r in w.new(REPORTS) if r["kind"] == k]


def _counted(w: FakeDatasets, k: str) -> list[Record]:
    counted = Counter(r["severity"] for r in _of_kind(w, k))
    return [{"severity": s, "n": n, "k": k} for s, n in counted.items() if n >= 2]


SHAPES = [
    Case(["severity"], "select r.id, severity as wanted, r.kind from Reports r where r.kind = severity", each(*KINDS),
         lambda w, k: [{"id": r["id"], "wanted": k, "kind": k} for r in _of_kind(w, k)]),
    Case(["k"], "select r.severity, count(*) as n, k from Reports r where r.kind = k group by r.severity"
         " having count(*) >= 2", each(*KINDS), _counted),
    Case(["k"], "select k as kind, max(r.severity) as most from Reports r where r.kind = k group by k",
         each(*KINDS, "?"),
         lambda w, k: [{"kind": k, "most": max(r["severity"] for r in _of_kind(w, k))}] if _of_kind(w, k) else []),
    Case(["k"], "select value r.id from Reports r where r.kind = k order by r.severity desc, r.id limit 3 offset 1",
         each(*KINDS),
         lambda w, k: [r["id"] for r in sorted(_of_kind(w, k), key=lambda r: (-r["severity"], r["id"]))][1:4],
         ordered=True),
    Case(["k"], "select r.severity, count(*) as k from Reports r where r.kind = k group by r.severity"
         " order by k desc, r.severity limit 2", each(*KINDS),
         lambda w, k: [{"severity": s, "k": n} for s, n in sorted(
             Counter(r["severity"] for r in _of_kind(w, k)).items(), key=lambda one: (-one[1], one[0]))][:2],
         ordered=True),
    Case(["k"], "select distinct value r.severity from Reports r where r.kind = k", each(*KINDS),
         lambda w, k: list({r["severity"] for r in _of_kind(w, k)})),
    Case(["k"], "select distinct r.severity as s, k from Reports r where r.kind = k order by s desc limit 2",
         each(*KINDS),
         lambda w, k: [{"s": s, "k": k} for s in sorted({r["severity"] for r in _of_kind(w, k)}, reverse=True)][:2],
         ordered=True),
    Case([], "select count(*) as n from Reports r", lambda _rng, _world: [()],
         lambda w: [{"n": len(w.new(REPORTS))}]),
    Case(["k"], "select value r.id from Reports r where r.kind = k union all"
         " select value -r.severity from Reports r where r.note = k", each(*KINDS),
         lambda w, k: [r["id"] for r in _of_kind(w, k)]
         + [-r["severity"] for r in w.new(REPORTS) if r.get("note") == k]),
]  # fmt: skip

_NEAR = FunctionOf("sheltersOf", ("k",), "select value s.name from Shelters s where s.kind = k order by s.name")
_DOUBLE = FunctionOf("isTwice", ("a", "b"), "a = 2 * b")


def _shelters(w: FakeDatasets, k: str) -> list[str]:
    return sorted(s["name"] for s in w.all(SHELTERS) if s["kind"] == k)


ENRICHED = [
    Case(["k"], "select r.id, near from Reports r let near = (select value s.name from Shelters s"
         " where s.kind = r.note order by s.name) where r.kind = k", each(*KINDS),
         lambda w, k: [{"id": r["id"], "near": _shelters(w, r["note"]) if r.get("note") is not None else []}
                       for r in _of_kind(w, k)]),
    Case(["name"], "select r.id, s.name from Reports r, Shelters s where s.kind = r.note and s.name = name",
         many(lambda rng: (f"shelter {rng.randint(0, 30)}",), 20),
         lambda w, name: [{"id": r["id"], "name": name} for r in w.new(REPORTS) for s in w.all(SHELTERS)
                          if s["name"] == name and s["kind"] == r.get("note")]),
    Case(["k"], "select r.id, s.name from Reports r join Shelters s on s.kind = r.note and r.kind = k", each(*KINDS),
         lambda w, k: [{"id": r["id"], "name": name} for r in _of_kind(w, k) if r.get("note") is not None
                       for name in _shelters(w, r["note"])]),
    Case(["k"], "select r.id, s.name from Reports r left join Shelters s on s.kind = r.note where r.kind = k",
         each(*KINDS),
         lambda w, k: [{"id": r["id"], **({"name": name} if name else {})} for r in _of_kind(w, k)
                       for name in (_shelters(w, r["note"]) if r.get("note") is not None else []) or [None]]),
    Case(["k", "n"], "select r.id, sheltersOf(r.kind) as s from Reports r where r.kind = k and isTwice(r.severity, n)",
         many(lambda rng: (kind(rng), rng.randint(-1, 6))),
         lambda w, k, n: [{"id": r["id"], "s": _shelters(w, k)} for r in _of_kind(w, k) if r["severity"] == 2 * n],
         functions=(_NEAR, _DOUBLE)),
    Case(["k"], "select value x.id from (select value r from Reports r where r.kind = k and r.severity > 2) x"
         " where x.severity < 9", each(*KINDS),
         lambda w, k: [r["id"] for r in _of_kind(w, k) if 2 < r["severity"] < 9]),
]  # fmt: skip


@tried
@given(seed=seeds)
def test_groups_order_and_limits_are_each_interests_own(spark: SparkSession, seed: int) -> None:
    run(spark, seed, SHAPES)


@tried
@given(seed=seeds)
def test_what_enriches_a_record_reaches_every_interest(spark: SparkSession, seed: int) -> None:
    run(spark, seed, ENRICHED)


# ---------------------------------------------------------------- versions, windows, names


def _pairs(w: FakeDatasets, name: str) -> list[Any]:
    """Reports and the user, of the same kind, where one of the two is new."""
    users = [u for u in w.rows[USERS.name] if u.record["name"] == name]
    return [
        [r.record["id"], name]
        for u in users
        for r in w.rows[REPORTS.name]
        if r.record["kind"] == u.record["kind"] and (u.commit > w.since or r.commit > w.since)
    ]


MOMENTS = [
    Case(["u"], "select value [r.id, p.name] from Reports r, Users p where r.kind = p.kind and p.name = u"
         " and (is_new(r) or is_new(p))", each(*USER_NAMES), _pairs),
    Case(["u"], "select value [r.id, p.name] from Users p left join Reports r on r.kind = p.kind and r.severity > 20"
         " where p.name = u and (is_new(r) or is_new(p))", each(*USER_NAMES),
         lambda w, u: [[None, p["name"]] for p in w.new(USERS) if p["name"] == u]),
    Case(["k"], "select value r.id from Reports r where r.kind = k", each(*KINDS), continuous=False,
         told=lambda w, k: [r["id"] for r in w.all(REPORTS) if r["kind"] == k]),
    Case(["k"], "select value r.id from Reports r where r.kind = k and r.at > current_datetime()"
         ' - day_time_duration("PT20S")', each(*KINDS), continuous=False,
         told=lambda w, k: [r["id"] for r in w.all(REPORTS)
                            if r["kind"] == k and r["at"] > NOW - timedelta(seconds=20)]),
    Case(["k"], "select value r.id from Reports r where r.kind = k and r.at > previous_channel_time()"
         " and r.at < current_channel_time() and active_timestamp(r) > previous_channel_time()", each(*KINDS),
         lambda w, k: [v.record["id"] for v in w.rows[REPORTS.name] if v.commit > w.since and v.record["kind"] == k
                       and PREVIOUS < v.record["at"] < NOW and v.at > PREVIOUS]),
    Case(["k"], "select k, active_timestamp(r) as t from Reports r where r.kind = k", each(*KINDS),
         lambda w, k: [{"k": k, "t": v.at} for v in w.rows[REPORTS.name]
                       if v.commit > w.since and v.record["kind"] == k]),
]  # fmt: skip

NAMES = [
    Case(["r"], "select value r.id from Reports x let k = r, r = x where r.kind = k", each(*KINDS),
         lambda w, k: [r["id"] for r in _of_kind(w, k)]),
    Case(["kind"], "select value kind from Reports r let kind = upper(kind) where upper(r.kind) = kind",
         each("fire", "fi"),
         lambda w, k: [k.upper() for r in w.new(REPORTS) if r["kind"].upper() == k.upper()]),
    Case(["interest", "number", "place", "result"], "select interest, r.id as result from Reports r"
         " where r.kind = interest and r.severity = number order by result desc",
         many(lambda rng: (kind(rng), rng.randint(-3, 12), 1, 2)), ordered=True,
         told=lambda w, k, n, *_: [{"interest": k, "result": r["id"]} for r in
                                   sorted(_of_kind(w, k), key=lambda r: -r["id"]) if r["severity"] == n]),
    Case(["p0", "k0"], "select value r.id from Reports r where (r.kind = k0 or r.severity = p0)",
         many(lambda rng: (rng.randint(-3, 12), kind(rng))),
         ids(lambda r, p0, k0: r["kind"] == k0 or r["severity"] == p0)),
    Case(["名 前", "id"], "select value id from (select value r.id from Reports r where r.kind = `名 前`) id", many(
        lambda rng: (kind(rng), 1)), lambda w, k, _: [r["id"] for r in _of_kind(w, k)]),
]  # fmt: skip


@tried
@given(seed=seeds)
def test_row_versions_count_once_and_windows_end_where_they_say(spark: SparkSession, seed: int) -> None:
    run(spark, seed, MOMENTS)


@tried
@given(seed=seeds)
def test_names_that_collide_keep_their_meaning(spark: SparkSession, seed: int) -> None:
    run(spark, seed, NAMES)


@tried
@given(seed=seeds)
def test_interests_may_come_and_go_between_executions(spark: SparkSession, seed: int) -> None:
    """With a cache of a few: rows of all three kinds take part, cached ones, late ones, and those that left."""
    rng, made = Random(seed), world(seed)
    with shown(spark, made):
        for parameters, body, draw, test in _CHANGING:
            query = compiled(spark, parameters, body)
            kept, present, number = InterestTable(spark, query, InterestLimits(cached_from=5)), {}, 0
            for step in range(4):
                added = {number + i: draw(rng) for i in range(rng.choice((1, 8, 30)) if step else 30)}
                number += len(added)
                removed = rng.sample(sorted(present), len(present) // rng.choice((2, 20)))
                kept.change(added.items(), removed)
                present = {item: values for item, values in {**present, **added}.items() if item not in removed}
                found = executed(spark, query, made, kept)
                expected = Counter(
                    (item, text(r["id"])) for item, values in present.items()
                    for r in made.new(REPORTS) if test(r, *values) is True
                )  # fmt: skip
                assert found == expected, f"{body}, seed {seed}, step {step}"
            kept.close()


_CHANGING: list[tuple[list[str], str, Callable[[Random], tuple[Any, ...]], Callable[..., Any]]] = [
    (["k"], "select value r.id from Reports r where r.kind = k", lambda rng: (kind(rng),), lambda r, k: r["kind"] == k),
    (["s"], "select value r.id from Reports r where r.level <= s", lambda rng: (level(rng),),
     lambda r, s: r["level"] <= s),
    (["k", "n"], "select value r.id from Reports r where r.kind = k or r.severity = n",
     lambda rng: (kind(rng), rng.randint(-3, 12)), lambda r, k, n: r["kind"] == k or r["severity"] == n),
]  # fmt: skip
