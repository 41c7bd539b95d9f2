"""Each function of collections answers the same for declared and undeclared values, and as SQL++ does."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from typing import Any, Final
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.corpus.test_corpus import alike
from tests.support import examples
from tests.support.in_process_cluster import LocalCluster
from tests.support.literals import literal
from tests.support.reference import collections as model
from tests.support.strategies import points
from tocsin.rules.model.json_form import plain
from tocsin.rules.model.values import MISSING, Circle, Duration, Line, Polygon, rectangle

_small = st.integers(-99, 99)
_moments = st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1))
_whole_seconds = st.sampled_from([datetime(2020, 1, 1), datetime(2021, 6, 30, 8), datetime(1999, 12, 31, 23, 59, 59)])
_reals = st.sampled_from([0.5, 1.0, -2.0, 1e300, 1e-30, math.nan, math.inf, -0.0])
_lines = st.builds(Line, points(), points())

# The type of the items, as a declaration writes it, and its values.
KINDS: Final[dict[str, st.SearchStrategy[Any]]] = {
    "bigint": _small,
    "string": st.sampled_from(["", "a", "b", "1", "null", 'say "1.0,"', "名前", "it's \\ [7.0]"]),
    "double": _reals,
    "tinyint": _small,
    "float": st.sampled_from([0.5, 1.0, -2.0, math.inf]),
    "boolean": st.booleans(),
    # Random microseconds are never 0.
    "datetime": (_moments | _whole_seconds).map(lambda moment: moment.replace(tzinfo=UTC)),
    "date": st.dates(date(1990, 1, 1), date(2090, 1, 1)),
    "time": st.times() | _whole_seconds.map(datetime.time),
    "point": points(),
    "duration": st.builds(Duration, _small, st.integers(-(10**12), 10**12)),
    "uuid": st.uuids(),
    "line": _lines,
    "rectangle": _lines.map(lambda line: rectangle(line.start, line.end)),
    "circle": st.builds(Circle, points(), st.floats(0, 99)),
    "polygon": st.lists(points(), min_size=3, max_size=4).map(tuple).map(Polygon),
    "[bigint]": st.lists(_small, max_size=2),
    "{x: bigint, y: string}": st.fixed_dictionaries({"x": _small, "y": st.sampled_from("ab")}),
}

_Model = Callable[..., Any]
# The calls: the text, and the answer for the fields a and b (arrays), x and y (items) and n (a number).
CALLS: Final[list[tuple[str, _Model]]] = [
    ("array_count(r.a)", lambda r: model.array_count(r.a)),
    ("coll_count(r.a)", lambda r: model.strict_count(r.a)),
    ("coll_sum(r.a)", lambda r: model.strictly(model.array_sum, numbers=True)(r.a)),
    ("coll_avg(r.a)", lambda r: model.strictly(model.array_avg, numbers=True)(r.a)),
    ("coll_min(r.a)", lambda r: model.strictly(model.array_min, numbers=False)(r.a)),
    ("array_var_pop(r.a)", lambda r: model.variance(r.a, 0)),
    ("strict_var_samp(r.a)", lambda r: model.strictly(lambda items: model.variance(items, 1), numbers=True)(r.a)),
    ("array_range(r.n, 4)", lambda r: model.array_range(r.n, 4)),
    ("array_range(0, r.n, 2)", lambda r: model.array_range(0, r.n, 2)),
    ("array_star(r.a)", lambda r: model.array_star(r.a)),
    ("concat(r.a, r.b)", lambda r: model.concat(r.a, r.b)),
    ("similarity_jaccard(r.a, r.b)", lambda r: model.similarity_jaccard(r.a, r.b)),
    ("strict_count(r.a)", lambda r: model.strict_count(r.a)),
    ("array_sum(r.a)", lambda r: model.array_sum(r.a)),
    ("strict_sum(r.a)", lambda r: model.strictly(model.array_sum, numbers=True)(r.a)),
    ("array_avg(r.a)", lambda r: model.array_avg(r.a)),
    ("strict_avg(r.a)", lambda r: model.strictly(model.array_avg, numbers=True)(r.a)),
    ("array_min(r.a)", lambda r: model.array_min(r.a)),
    ("array_max(r.a)", lambda r: model.array_max(r.a)),
    ("coll_max(r.a)", lambda r: model.strictly(model.array_max, numbers=False)(r.a)),
    ("strict_min(r.a)", lambda r: model.strictly(model.array_min, numbers=False)(r.a)),
    ("len(r.a)", lambda r: model.array_length(r.a)),
    ("array_length(r.a)", lambda r: model.array_length(r.a)),
    ("array_reverse(r.a)", lambda r: model.array_reverse(r.a)),
    ("array_sort(r.a)", lambda r: model.array_sort(r.a)),
    ("array_distinct(r.a)", lambda r: model.array_distinct(r.a)),
    ("array_ifnull(r.a)", lambda r: model.array_ifnull(r.a)),
    ("array_slice(r.a, r.n)", lambda r: model.array_slice(r.a, r.n)),
    ("array_slice(r.a, 0, r.n)", lambda r: model.array_slice(r.a, 0, r.n)),
    ("array_flatten(r.a, r.n)", lambda r: model.array_flatten(r.a, r.n)),
    ("array_flatten([r.a, [r.b]], 1)", lambda r: model.array_flatten([null_of(r.a), [null_of(r.b)]], 1)),
    ("array_contains(r.a, r.x)", lambda r: model.array_contains(r.a, r.x)),
    ("array_position(r.a, r.x)", lambda r: model.array_position(r.a, r.x)),
    ("array_append(r.a, r.x)", lambda r: model.array_append(r.a, r.x)),
    ("array_prepend(r.x, r.a)", lambda r: model.array_prepend(r.x, r.a)),
    ("array_insert(r.a, r.n, r.x)", lambda r: model.array_insert(r.a, r.n, r.x)),
    ("array_put(r.a, r.x, r.y)", lambda r: model.array_put(r.a, r.x, r.y)),
    ("array_remove(r.a, r.x, r.y)", lambda r: model.array_remove(r.a, r.x, r.y)),
    ("array_replace(r.a, r.x, r.y)", lambda r: model.array_replace(r.a, r.x, r.y)),
    ("array_replace(r.a, r.x, r.y, r.n)", lambda r: model.array_replace(r.a, r.x, r.y, r.n)),
    ("array_repeat(r.x, r.n)", lambda r: model.array_repeat(r.x, r.n)),
    ("array_concat(r.a, r.b)", lambda r: model.array_concat(r.a, r.b)),
    ("array_union(r.a, r.b)", lambda r: model.array_union(r.a, r.b)),
    ("array_intersect(r.a, r.b)", lambda r: model.array_intersect(r.a, r.b)),
    ("array_except(r.a, r.b)", lambda r: model.array_except(r.a, r.b)),
    ("array_symdiff(r.a, r.b)", lambda r: model.array_symdiff(r.a, r.b)),
    ("array_symdiffn(r.a, r.b, r.a)", lambda r: model.array_symdiffn(r.a, r.b, r.a)),
]
_AT_ONCE: Final = 12


def null_of(value: Any) -> Any:
    """What an array constructor makes of an item."""
    return None if value is MISSING else value


def in_any_order_at_the_end(answer: dict[str, Any]) -> dict[str, Any]:
    """The sorted items, with those that have no order in one of their orders."""
    items = answer.get("c")
    if not isinstance(items, list):
        return answer
    unordered = [item for item in items if isinstance(item, list | dict)]
    unordered.sort(key=lambda item: json.dumps(item, sort_keys=True))
    return {"c": [*items[: len(items) - len(unordered)], *unordered]}


class Row(dict[str, Any]):
    """A record whose absent fields are MISSING."""

    def __getattr__(self, name: str) -> Any:
        return self.get(name, MISSING)


@st.composite
def rows(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> Row:
    """A record of few different items, so that equal ones meet; any field may be NULL or absent."""
    pool = draw(st.lists(values, min_size=1, max_size=3))
    items = st.sampled_from([*pool, None])
    lists = st.lists(items, max_size=5)
    fields = {"a": lists, "b": lists, "x": items, "y": items, "n": st.integers(-3, 4)}
    some = {
        name: draw(st.one_of(found, found, found, st.sampled_from([None, MISSING]))) for name, found in fields.items()
    }
    return Row((name, value) for name, value in some.items() if value is not MISSING)


_odd = st.sampled_from([7, 2.5, "text", True, {"o": 1}, None])


@st.composite
def odd_rows(draw: st.DrawFn) -> Row:
    """A record whose fields have types that the functions do not expect, and arrays of mixed items."""
    items = st.sampled_from([1, 1.0, 2, "1", "b", True, None, [1], [1.0], {"o": 1}, {"o": 1.0}])
    mixed = st.lists(items, max_size=5)
    numbers = st.sampled_from([1, 1.0, 1.5, -1, "1", None, [1]])
    return Row(
        a=draw(mixed | _odd), b=draw(mixed | _odd), x=draw(items), y=draw(items), n=draw(numbers)
    )  # fmt: skip


@pytest.fixture(scope="module")
def world(cluster: LocalCluster) -> Iterator[str]:
    name = f"collections{uuid4().hex}"
    undeclared = "CREATE TYPE U AS OPEN {id: int, batch: string}; CREATE DATASET Undeclared(U) PRIMARY KEY id;"
    declared = "".join(
        f"CREATE TYPE T{at} AS CLOSED {{id: int, batch: string, a: [{kind}?]?, b: [{kind}?]?, x: {kind}?, y: {kind}?,"
        f" n: int?}}; CREATE DATASET Declared{at}(T{at}) PRIMARY KEY id;"
        for at, kind in enumerate(KINDS)
    )
    cluster.run(f"CREATE DATAVERSE {name}; USE {name}; {undeclared} {declared}")
    yield name
    cluster.run(f"DROP DATAVERSE {name}")


_ids = itertools.count()
# One example is a batch of records, asked in a few queries, and its failure names the record: no need to shrink it.
_FEW = settings(max_examples=2, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))


# The same calls with the items, or the array, of an undeclared record of the same values.
MIXED: Final[list[tuple[str, _Model]]] = [
    (text.replace(part, part.replace("r.", "s.")), answer)
    for text, answer in CALLS
    for part in ("r.a", "r.b", "r.x")
    if part in text and sum(other in text for other in ("r.a", "r.b", "r.x")) == 2
]


def ask(
    cluster: LocalCluster, world: str, datasets: tuple[str, ...], records: list[Row], asked: list[tuple[str, _Model]]
) -> list[tuple[str, Any, Any, Row]]:
    """Inserts the records and asks for every call; returns the wrong answers. A second dataset is `s`."""
    batch = uuid4().hex
    numbered = [{"id": next(_ids), "batch": batch, **record} for record in records]
    cluster.run(f"USE {world}; " + "".join(f"INSERT INTO {name} {literal(numbered)};" for name in datasets))
    wrong = []
    source = ", ".join(f"{name} {variable}" for name, variable in zip(datasets, "rs", strict=False))
    joined = " AND s.id = r.id" if len(datasets) > 1 else ""
    for start in range(0, len(asked), _AT_ONCE):
        calls = asked[start : start + _AT_ONCE]
        fields = ", ".join(f'"c{at}": {text}' for at, (text, _) in enumerate(calls))
        query = f'SELECT VALUE {{"id": r.id, {fields}}} FROM {source} WHERE r.batch = "{batch}"{joined} ORDER BY r.id'
        found = cluster.rows(f"USE {world}; {query}")
        for answers, record in zip(found, records, strict=True):
            for at, (text, answer) in enumerate(calls):
                expected = plain({"c": answer(record)})
                got = {"c": answers[f"c{at}"]} if f"c{at}" in answers else {}
                if text.startswith("array_sort"):
                    got, expected = in_any_order_at_the_end(got), in_any_order_at_the_end(expected)
                if not alike(got, expected):
                    wrong.append((text, got, expected, record))
    return wrong


@pytest.mark.parametrize(("at", "kind"), list(enumerate(KINDS))[:: 9 if examples.is_quick else 1])
def test_declared_items_of_every_type_answer_as_in_sqlpp(cluster: LocalCluster, world: str, at: int, kind: str) -> None:
    @_FEW
    @given(st.lists(rows(KINDS[kind]), min_size=40, max_size=40))
    def check(records: list[Row]) -> None:
        assert is_dull(records) or ask(cluster, world, (f"Declared{at}",), records, CALLS) == []

    check()


def test_undeclared_items_of_every_type_answer_as_in_sqlpp(cluster: LocalCluster, world: str) -> None:
    @_FEW
    @given(st.tuples(*(st.lists(found, min_size=6, max_size=6) for found in (*map(rows, KINDS.values()), odd_rows()))))
    def check(batches: tuple[list[Row], ...]) -> None:
        records = [record for batch in batches for record in batch]
        assert is_dull(records) or ask(cluster, world, ("Undeclared",), records, CALLS) == []

    check()


@pytest.mark.parametrize("kind", ["datetime", "time", "double", "duration", "point"][:: 4 if examples.is_quick else 1])
def test_declared_and_undeclared_values_may_meet_in_a_call(cluster: LocalCluster, world: str, kind: str) -> None:
    @settings(_FEW, max_examples=2)
    @given(st.lists(rows(KINDS[kind]), min_size=30, max_size=30))
    def check(records: list[Row]) -> None:
        datasets = (f"Declared{list(KINDS).index(kind)}", "Undeclared")
        assert is_dull(records) or ask(cluster, world, datasets, records, MIXED) == []

    check()


def is_dull(records: list[Row]) -> bool:
    """Whether this is the simplest example, which Hypothesis tries first: equal records."""
    return len(set(map(repr, records))) < len(records) // 2
