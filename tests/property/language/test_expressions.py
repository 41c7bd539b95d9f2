"""Random expressions over random rows, typed and untyped, against a small evaluator in plain Python.

The evaluator knows SQL's three-valued logic and nothing of Spark. Numbers are kept small enough that no integer
overflows and every sum of doubles is exact.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import Phase, given, note, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.in_process_cluster import LocalCluster
from tests.support.literals import literal
from tests.support.strategies import same

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class E:
    """An expression as text and as a function of a row; NULL and MISSING are None."""

    text: str
    value: Callable[[Row], Any]


_INTEGERS = st.integers(-20, 20)
_DOUBLES = st.integers(-80, 80).map(lambda n: n / 4)
_STRINGS = st.text("abXé名 '\"", max_size=4)
_ITEMS = st.lists(_INTEGERS | st.none(), max_size=4)
# What an undeclared field may be: numbers and texts that look like numbers must not be taken for each other.
_OPEN = st.one_of(_INTEGERS, _DOUBLES, _STRINGS, st.booleans(), st.integers(0, 9).map(str), st.none())


@st.composite
def _rows(draw: st.DrawFn) -> list[Row]:
    rows = []
    for i in range(draw(st.integers(1, 4))):
        row = {"id": i, "i": draw(_INTEGERS), "d": draw(_DOUBLES), "s": draw(_STRINGS), "l": draw(_ITEMS)}
        for name, values in (("oi", _INTEGERS), ("od", _DOUBLES), ("os", _STRINGS), ("u", _OPEN), ("w", _OPEN)):
            if draw(st.booleans()):
                row[name] = draw(values | st.none())
        rows.append(row)
    return rows


def _column(name: str) -> E:
    return E(f"r.{name}", lambda row: row.get(name))


def _constant(value: Any) -> E:
    return E(f"({literal(value)})", lambda _: value)


def _strict(function: Callable[..., Any]) -> Callable[..., Any]:
    """Unknown in, unknown out."""
    return lambda *arguments: None if any(argument is None for argument in arguments) else function(*arguments)


def _apply(template: str, function: Callable[..., Any], *parts: E) -> E:
    return E(
        template.format(*(part.text for part in parts)), lambda row: function(*(part.value(row) for part in parts))
    )


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _alike(a: Any, b: Any) -> bool:
    return (_number(a) and _number(b)) or type(a) is type(b)


def _rest(a: float, b: int) -> Any:
    """The remainder with the sign of what is divided."""
    return math.fmod(a, b) if isinstance(a, float) else int(math.fmod(a, b))


def _both(a: Any, b: Any) -> Any:
    return False if a is False or b is False else None if a is None or b is None else True


def _either(a: Any, b: Any) -> Any:
    return True if a is True or b is True else None if a is None or b is None else False


def _some(tests: list[Any]) -> Any:
    return True if True in tests else None if None in tests else False


_OPERATORS = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _numbers(depth: int) -> st.SearchStrategy[E]:
    leaves = st.sampled_from([_column(name) for name in ("i", "d", "oi", "od")]) | (_INTEGERS | _DOUBLES).map(_constant)
    if depth == 0:
        return leaves
    inner, divisors = _numbers(depth - 1), st.integers(1, 9).map(_constant)
    return st.one_of(
        leaves,
        st.builds(lambda a, b: _apply("({} + {})", _strict(operator.add), a, b), inner, inner),
        st.builds(lambda a, b: _apply("({} - {})", _strict(operator.sub), a, b), inner, inner),
        st.builds(lambda a, b: _apply("({} * {})", _strict(operator.mul), a, b), inner, divisors),
        st.builds(
            lambda a, b: _apply("({} / {})", _strict(operator.truediv), a, b),
            inner,
            st.sampled_from([2, 4]).map(_constant),
        ),
        st.builds(lambda a, b: _apply("({} % {})", _strict(_rest), a, b), _column_of("i", "oi"), divisors),
        st.builds(lambda a: _apply("(-{})", _strict(operator.neg), a), inner),
        st.builds(lambda a: _apply("abs({})", _strict(abs), a), inner),
        st.builds(lambda a: _apply("length({})", _strict(len), a), _texts(depth - 1)),
        st.just(_apply("size({})", _strict(len), _column("l"))),
        st.builds(
            lambda n: E(f"r.l[{n}]", lambda row: row["l"][n] if -len(row["l"]) <= n < len(row["l"]) else None),
            st.integers(-4, 4),
        ),
    )


def _column_of(*names: str) -> st.SearchStrategy[E]:
    return st.sampled_from([_column(name) for name in names])


def _texts(depth: int) -> st.SearchStrategy[E]:
    leaves = _column_of("s", "os") | _STRINGS.map(_constant)
    if depth == 0:
        return leaves
    inner = _texts(depth - 1)
    return st.one_of(
        leaves,
        st.builds(lambda a, b: _apply("({} || {})", _strict(operator.add), a, b), inner, inner),
        st.builds(lambda a: _apply("upper({})", _strict(str.upper), a), inner),
        st.builds(lambda a: _apply("reverse({})", _strict(lambda text: text[::-1]), a), inner),
        st.builds(
            lambda a, n: _apply(f"substr({{}}, {n + 1}, 2)", _strict(lambda text: text[n : n + 2]), a),
            inner,
            st.integers(0, 3),
        ),
        st.builds(lambda a, b: _apply("coalesce({}, {})", lambda x, y: y if x is None else x, a, b), inner, inner),
        st.builds(
            lambda test, a, b: _apply(
                "CASE WHEN {} THEN {} ELSE {} END", lambda t, x, y: x if t is True else y, test, a, b
            ),
            _truths(depth - 1),
            inner,
            inner,
        ),
    )


def _untyped() -> st.SearchStrategy[E]:
    return _column_of("u", "w")


def _compared(sign: str, a: E, b: E) -> E:
    def function(x: Any, y: Any) -> Any:
        return _OPERATORS[sign](x, y)

    return _apply(f"({{}} {sign} {{}})", _strict(function), a, b)


def _compared_untyped(sign: str, a: E, b: E) -> E:
    """Values of different kinds cannot be compared: unknown."""

    def function(x: Any, y: Any) -> Any:
        return _OPERATORS[sign](x, y) if _alike(x, y) else None

    return _apply(f"({{}} {sign} {{}})", _strict(function), a, b)


def _truths(depth: int) -> st.SearchStrategy[E]:
    signs = st.sampled_from(sorted(_OPERATORS))
    leaves = st.one_of(
        st.builds(_compared, signs, _numbers(0), _numbers(0)),
        st.builds(_compared, signs, _texts(0), _texts(0)),
        st.builds(_compared_untyped, signs, _untyped(), _numbers(0) | _texts(0)),
        st.builds(
            lambda a: _apply("({} = true)", _strict(lambda x: x if isinstance(x, bool) else None), a), _untyped()
        ),
        st.sampled_from(
            [
                E(f"(r.{name} IS {kind})", test(name))
                for name in ("oi", "od", "os", "u")
                for kind, test in (
                    ("MISSING", lambda name: lambda row: name not in row),
                    ("NULL", lambda name: lambda row: name in row and row[name] is None),
                    ("UNKNOWN", lambda name: lambda row: row.get(name) is None),
                    ("VALUED", lambda name: lambda row: row.get(name) is not None),
                )
            ]
        ),
    )
    if depth == 0:
        return leaves
    inner, numbers = _truths(depth - 1), _numbers(depth - 1)
    return st.one_of(
        leaves,
        st.builds(lambda a, b: _apply("({} AND {})", _both, a, b), inner, inner),
        st.builds(lambda a, b: _apply("({} OR {})", _either, a, b), inner, inner),
        st.builds(lambda a: _apply("(NOT {})", _strict(operator.not_), a), inner),
        st.builds(_compared, signs, numbers, numbers),
        st.builds(_compared, signs, _texts(depth - 1), _texts(depth - 1)),
        st.builds(
            lambda a, b, c: _apply(
                "({} BETWEEN {} AND {})",
                lambda x, y, z: _both(_strict(operator.ge)(x, y), _strict(operator.le)(x, z)),
                a,
                b,
                c,
            ),
            numbers,
            numbers,
            numbers,
        ),
        st.builds(
            lambda a, b, c: _apply(
                "({} IN ({}, {}))",
                lambda x, y, z: _some([_strict(operator.eq)(x, operand) for operand in (y, z)]),
                a,
                b,
                c,
            ),
            numbers,
            numbers,
            numbers,
        ),
        st.builds(lambda a: _apply("({} IN r.l)", lambda x: x, a), numbers).map(
            lambda e: E(e.text, lambda row: _some([_strict(operator.eq)(e.value(row), value) for value in row["l"]]))
        ),
        st.builds(
            lambda n: E(
                f"(SOME x IN r.l SATISFIES x > {n})",
                lambda row: _some([None if x is None else x > n for x in row["l"]]),
            ),
            _INTEGERS,
        ),
        st.builds(
            lambda n: E(
                f"(EVERY x IN r.l SATISFIES x > {n})",
                lambda row: _strict(operator.not_)(_some([None if x is None else not x > n for x in row["l"]])),
            ),
            _INTEGERS,
        ),
    )


def _sums() -> st.SearchStrategy[E]:
    """Untyped arithmetic: whole numbers stay whole, what is no number gives nothing."""

    def added(x: Any, y: Any) -> Any:
        return x + y if _number(x) and _number(y) else None

    return st.builds(lambda a, b: _apply("({} + {})", added, a, b), _untyped(), _untyped() | _numbers(0))


_EXPRESSIONS = st.lists(st.one_of(_numbers(2), _texts(2), _truths(2), _sums()), min_size=5, max_size=15)


@pytest.fixture(scope="module")
def rows_dataset(cluster: LocalCluster) -> Iterator[str]:
    name = f"expressions{uuid4().hex}"
    cluster.run(
        f"CREATE DATAVERSE {name}; USE {name};"
        "CREATE TYPE R AS OPEN {id: int, i: int, d: double, s: string, l: [int?], oi: int?, od: double?, os: string?};"
        "CREATE DATASET `Rows`(R) PRIMARY KEY id"
    )
    yield name
    cluster.run(f"DROP DATAVERSE {name}")


@settings(max_examples=examples(15), phases=(Phase.explicit, Phase.reuse, Phase.generate), print_blob=True)
@given(rows=_rows(), expressions=_EXPRESSIONS)
def test_expressions_have_the_values_that_plain_python_gives_them(
    cluster: LocalCluster, rows_dataset: str, rows: list[Row], expressions: list[E]
) -> None:
    columns = ", ".join(f"{expression.text} AS c{i}" for i, expression in enumerate(expressions))
    cluster.run(f"USE {rows_dataset}; DELETE FROM `Rows`; INSERT INTO `Rows` {literal(rows)}")
    found = cluster.rows(f"USE {rows_dataset}; SELECT r.id AS id, {columns} FROM `Rows` r ORDER BY r.id")
    assert [item["id"] for item in found] == [row["id"] for row in rows]
    for answer, row in zip(found, rows, strict=True):
        for i, expression in enumerate(expressions):
            expected = expression.value(row)
            note(f"{expression.text} over {row}")
            assert same(_zero(answer.get(f"c{i}")), _zero(expected)), (
                f"{expression.text} over {row}: {answer.get(f'c{i}')} is not {expected}"
            )


def _zero(value: Any) -> Any:
    return 0.0 if isinstance(value, float) and value == 0 else value


@settings(max_examples=examples(8), phases=(Phase.explicit, Phase.reuse, Phase.generate), print_blob=True)
@given(rows=_rows(), condition=_truths(3))
def test_a_condition_keeps_the_rows_for_which_it_is_true(
    cluster: LocalCluster, rows_dataset: str, rows: list[Row], condition: E
) -> None:
    cluster.run(f"USE {rows_dataset}; DELETE FROM `Rows`; INSERT INTO `Rows` {literal(rows)}")
    found = cluster.rows(f"USE {rows_dataset}; SELECT VALUE r.id FROM `Rows` r WHERE {condition.text} ORDER BY r.id")
    assert found == [row["id"] for row in rows if condition.value(row) is True], f"{condition.text} over {rows}"
