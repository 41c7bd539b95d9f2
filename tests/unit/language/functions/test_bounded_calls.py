"""What stands in Spark's SQL for calls that would make huge values, or never end."""

from __future__ import annotations

import re

import pytest
from sqlglot import exp

from tocsin.language.functions import function_registry
from tocsin.language.functions.bounds import bounded_calls
from tocsin.language.functions.bounds.call_limits import check_format
from tocsin.language.translate.spark_text import render, render_for_analysis
from tocsin.language.types.typed_sql import FunctionError, literal, string
from tocsin.pipeline import java_functions


def called(name: str, *arguments: object) -> exp.Expr:
    made = [
        argument
        if isinstance(argument, exp.Expr)
        else string(argument)
        if isinstance(argument, str)
        else literal(argument).sql
        for argument in arguments
    ]
    return exp.Anonymous(this=name, expressions=made)


DEEP = 15
N, X = exp.column("n"), exp.column("x")


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (called("repeat", "abcdefgh", 250_000_000), "repeat makes texts of at most 10,000,000 characters"),
        (called("repeat", "abcdefgh", 1_250_001), "repeat makes texts"),
        (called("repeat", X, 10_000_001), "repeat makes texts"),
        (called("Space", 2_147_483_647), "space makes texts"),
        (called("lpad", X, 2_000_000_000, " "), "lpad makes texts"),
        (called("rpad", X, 2_000_000_000), "rpad makes texts"),
        (called("array_repeat", X, 2_000_000_000), "array_repeat makes arrays of at most 1,000,000 items"),
        (called("array_insert", X, 2_000_000_000, 1), "array_insert makes arrays"),
        (called("array_insert", X, -2_000_000_000, 1), "array_insert makes arrays"),
        (called("sequence", 0, 2_000_000_000), "sequence makes arrays"),
        (called("sequence", 1_000_000, 0), "sequence makes arrays"),
        (called("sequence", 0, -4_000_000, -4), "sequence makes arrays"),
        (called("format_string", "%2000000000d", 1), "format_string makes texts"),
        (called("printf", "%1$-9000000s %.2000000f", 1.0), "printf makes texts"),
        (called("format_string", "%99999999999999999999d", 1), "format_string makes texts"),
        (called("round", X, 500_000_000), "round takes a number of digits, at most 400"),
        (called("floor", X, N), "floor takes a number of digits"),
        (called("format_number", X, 2_000_000_000), "format_number takes a number of digits"),
        (called("randstr", 2_000_000_000), "randstr takes a number of characters, at most 10,000,000"),
        (called("randstr", N), "randstr takes a number of characters"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_constant_that_makes_too_much_is_refused_before_anything_runs(call: exp.Expr, reason: str) -> None:
    for write in (render, render_for_analysis):
        with pytest.raises(FunctionError, match=reason):
            write(exp.select(call))


@pytest.mark.parametrize(
    "call",
    [
        called("space", 10_000_000), called("lpad", X, 10_000_000, " "), called("array_repeat", X, 1_000_000),
        called("sequence", 1, 1_000_000), called("sequence", 0, 2_000_000_000, 10_000), called("sequence", 1, 2, 0),
        called("format_string", "100%% of %5d: %-10.3s", 1, "x"), called("round", X), called("round", X, -2),
        called("format_number", X, "#,###.00"), called("array_insert", X, -3, 1), called("randstr", 5),
    ],
)  # fmt: skip
def test_ordinary_constants_need_no_guard(call: exp.Expr) -> None:
    assert "tocsin_" not in render(exp.select(call)).lower()


@pytest.mark.parametrize(
    ("call", "made"),
    [
        (called("levenshtein", X, "a"), "tocsin_levenshtein(CAST(x AS STRING), 'a', CAST(2147483647 AS INT))"),
        (called("Repeat", X, N), "tocsin_repeat(CAST(x AS STRING), CAST(n AS INT))"),
        (called("repeat", X, 3), "tocsin_repeat(CAST(x AS STRING), "),
        (called("space", N), "space(tocsin_letters(CAST(n AS INT), 'space'))"),
        (called("LPAD", X, N, "*"), "lpad(x, tocsin_letters(CAST(n AS INT), 'lpad'), '*')"),
        (called("rpad", X, N), "rpad(x, tocsin_letters(CAST(n AS INT), 'rpad'))"),
        (called("array_repeat", X, N), "array_repeat(x, tocsin_items(CAST(n AS INT), 'array_repeat'))"),
        (called("array_insert", X, N, 1), "array_insert(x, tocsin_items(CAST(n AS INT), 'array_insert'), "),
        (called("format_string", X, 1), "format_string(tocsin_format(CAST(x AS STRING), 'format_string'), "),
        (called("printf", X), "printf(tocsin_format(CAST(x AS STRING), 'printf'))"),
        (called("sequence", 1, N), "sequence(__s.a, IF(tocsin_sequence_fits(__s.a, __s.b, __s.s), __s.b, NULL))"),
        (called("sequence", 1, N, X), "__s.b, NULL), __s.s)"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_what_is_computed_is_looked_at_when_it_is_known(call: exp.Expr, made: str) -> None:
    assert made.lower() in render(exp.select(call)).lower()
    assert "tocsin_" not in render_for_analysis(exp.select(call)).lower(), (
        "what it takes is a question about Spark's own"
    )


def test_every_range_asks_whether_its_task_was_stopped() -> None:
    rows = exp.select("id").from_(exp.Table(this=called("Range", 10)))
    both = exp.select("*").from_(rows.subquery("a")).join(rows.subquery("b"), join_type="cross")
    assert render(both).lower().count("where tocsin_stoppable(id)") == 2
    assert "tocsin_" not in render_for_analysis(both).lower()


@pytest.mark.parametrize("name", sorted(bounded_calls.REWRITES))
def test_a_call_within_a_call_is_written_once(name: str) -> None:
    inner: exp.Expr = X
    for _ in range(DEEP):
        counts, _ = bounded_calls.REWRITES[name]
        inner = called(name, inner, *([N] * (counts.start - 1)))
    assert len(render(exp.select(inner))) < DEEP * 300


def test_all_of_them_can_be_called_and_none_of_ours_can() -> None:
    assert set(bounded_calls.REWRITES) <= function_registry.NAMES
    assert not set(java_functions.FUNCTIONS[java_functions.BOUNDED_VALUES]) & function_registry.NAMES
    for name in java_functions.FUNCTIONS[java_functions.BOUNDED_VALUES]:
        with pytest.raises(FunctionError, match="unknown function"):
            render(exp.select(called(name, X, N)))


def test_the_limits_in_java_are_those_of_the_language() -> None:
    source = java_functions.java_source(java_functions.BOUNDED_VALUES)
    assert not re.search(r"@\w+@", source)
    assert "10,000,000 characters" in source
    assert "1,000,000 items" in source


def test_places_of_a_format_are_summed() -> None:
    check_format("printf", "%5000000d" * 2)
    with pytest.raises(FunctionError):
        check_format("printf", "%5000000d" * 2 + "%1d")
