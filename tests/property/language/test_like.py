"""LIKE against a plain model of it: whatever the text, the pattern and the escape character are."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from sqlglot import exp

from tests.support.channel_compiler import FakeDatasets, Version, compiled, shown
from tests.support.channel_compiler import answers as answers_of_channel
from tests.support.examples import examples
from tocsin.language.functions.bounds import like_patterns
from tocsin.language.translate.spark_text import render
from tocsin.language.types.typed_sql import FunctionError, string

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Letters that regular expressions, SQL or quoting could take for something else, and a few of several bytes.
_LETTERS = "abeEQ%_\\!.*+?()[]{}^$|'\"`-\n\0é中😀 "


def holds(text: str, pattern: str, escape: str) -> bool | None:
    """The model; None where the pattern is wrong."""
    parts: list[tuple[str, bool]] = []  # letters, and whether each is a wildcard
    letters = iter(pattern)
    for letter in letters:
        if letter == escape:
            escaped = next(letters, None)
            if escaped is None or escaped not in ("%", "_", escape):
                return None
            parts.append((escaped, False))
        else:
            parts.append((letter, letter in "%_"))

    @cache
    def fits(at: int, part: int) -> bool:
        if part == len(parts):
            return at == len(text)
        letter, wild = parts[part]
        if wild and letter == "%":
            return fits(at, part + 1) or (at < len(text) and fits(at + 1, part))
        return at < len(text) and (wild or text[at] == letter) and fits(at + 1, part + 1)

    return fits(0, 0)


def answers(spark: SparkSession, cases: list[tuple[str | None, str | None]], escape: str, kind: Any) -> list[Any]:
    """What Spark says of each: first with all patterns in a column, then with each of them as a constant."""
    rows = [(i, text, pattern) for i, (text, pattern) in enumerate(cases)]
    spark.createDataFrame(rows, "i INT, t STRING, p STRING").createOrReplaceTempView("tocsin_like")

    def match(pattern: exp.Expr) -> exp.Expr:
        return exp.Escape(this=kind(this=exp.column("t"), expression=pattern), expression=string(escape))

    each = exp.Case(
        ifs=[
            exp.If(this=exp.EQ(this=exp.column("i"), expression=exp.Literal.number(i)), true=match(string(pattern)))
            for i, (_, pattern) in enumerate(cases)
            if pattern is not None
        ]
    )
    asked = exp.select("i", exp.alias_(match(exp.column("p")), "a"), exp.alias_(each, "b")).from_("tocsin_like")
    found = {row.i: (row.a, row.b) for row in spark.sql(render(asked)).collect()}
    return [found[i] for i in range(len(cases))]


_TEXTS = st.text(st.sampled_from(_LETTERS), max_size=12)
_CASES = st.lists(st.tuples(_TEXTS, _TEXTS), min_size=5, max_size=40)


@settings(max_examples=examples(40), deadline=None)
@given(cases=_CASES, escape=st.sampled_from("\\!E%_Q."))
def test_it_matches_what_the_model_matches(spark: SparkSession, cases: list[tuple[str, str]], escape: str) -> None:
    good = [(text, pattern) for text, pattern in cases if holds(text, pattern, escape) is not None]
    good += [(text, text.replace(escape, "")) for text, _ in cases if holds(text, text.replace(escape, ""), escape)]
    if good:
        expected = [(holds(text, pattern, escape),) * 2 for text, pattern in good]
        assert answers(spark, good, escape, exp.Like) == expected


@settings(max_examples=examples(10), deadline=None)
@given(cases=_CASES)
def test_without_regard_to_case_both_are_lowered(spark: SparkSession, cases: list[tuple[str, str]]) -> None:
    good = [(text, pattern) for text, pattern in cases if holds(text, pattern, "\\") is not None]
    if good:
        expected = [(holds(text.lower(), pattern.lower(), "\\"),) * 2 for text, pattern in good]
        assert answers(spark, good, "\\", exp.ILike) == expected


def test_what_is_unknown_stays_unknown(spark: SparkSession) -> None:
    cases: list[tuple[str | None, str | None]] = [(None, "%"), (None, "a"), ("a", None), (None, None), (None, "_%_")]
    assert answers(spark, cases, "\\", exp.Like) == [(None, None)] * len(cases)


@pytest.mark.parametrize("kind", [exp.Like, exp.ILike])
@pytest.mark.parametrize("pattern", ["%e%e%e%e%e%e%e%e%zq%", "_%e_%e_%e_%e_%e_%e_%zq", "%" * 900 + "zq"])
def test_a_pattern_of_many_wildcards_over_a_long_text_ends(spark: SparkSession, kind: Any, pattern: str) -> None:
    """With a `.*` for each wildcard this would take longer than anybody lives."""
    text = "the green trees here never see the evening breeze " * 2_000
    assert answers(spark, [(text, pattern), (f"{text}zq", pattern)], "\\", kind) == [(False, False), (True, True)]


@settings(max_examples=examples(200), deadline=None)
@given(pattern=_TEXTS)
def test_no_wildcard_is_ever_tried_twice(pattern: str) -> None:
    """What counts is not the time: every `.*` is reluctant and stands first in an atomic group of its own."""
    try:
        made = like_patterns.rewrite_like(exp.Like(this=exp.column("t"), expression=string(pattern)))
    except FunctionError:
        return
    assert made.find(exp.Like) is None
    regexes = [match.expression for match in made.find_all(exp.RegexpLike)]
    for regex in regexes:
        text = re.sub(r"\\Q.*?\\E", "", like_patterns.constant_string(regex) or "", flags=re.DOTALL)
        assert text.count("*") == text.count("(?>.*?")
        assert text.count("+") == text.count("{") == 0


def test_one_like_may_stand_within_another() -> None:
    inner = exp.Like(this=exp.column("t"), expression=string("%a_b%"))
    chosen = exp.Case(ifs=[exp.If(this=inner, true=exp.column("t"))], default=string("x"))
    tree = exp.Not(this=exp.Escape(this=exp.ILike(this=chosen, expression=exp.column("p")), expression=string("!")))
    assert "LIKE" not in render(exp.select(tree)).replace("TOCSIN_REGEXP_LIKE", "").replace("pattern of LIKE", "")


@pytest.mark.parametrize("pattern", ["a\\", "\\a", "%\\x%", "\\\\\\"])
def test_a_wrong_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(FunctionError, match="must stand before"):
        list(like_patterns.split_pattern(pattern, "\\"))


def test_there_is_a_limit_to_wildcards() -> None:
    with pytest.raises(FunctionError, match="at most 1000 wildcards"):
        list(like_patterns.split_pattern("_" * 1_001, "\\"))


def test_there_is_a_limit_to_characters(spark: SparkSession) -> None:
    long = "ab" * 5_000
    assert answers(spark, [(long, long), (long, f"%{long[2:]}_")], "\\", exp.Like) == [(True, True), (False, False)]
    with pytest.raises(PySparkException, match="at most 10,000 characters"):
        answers(spark, [("a", f"%{long}")], "\\", lambda **parts: exp.Like(**{**parts, "expression": exp.column("p")}))


def test_one_subscriptions_wildcards_do_not_stop_its_channel(spark: SparkSession) -> None:
    query = compiled(spark, ["p"], "select value r.id from Reports r where r.kind like p")
    kind = "the green trees here never see the evening breeze " * 40
    world = FakeDatasets({"Reports": [Version({"id": 1, "kind": kind}, 2), Version({"id": 2, "kind": "\\%"}, 2)]})
    patterns = ["%e%e%e%e%e%e%e%e%zq%", "the%trees%breeze_", "\\", "%" * 1_001, "\\\\\\%", "%_e%e%e%e%e%e%e%zq"]
    with shown(spark, world):
        told = answers_of_channel(spark, query, world, [(pattern,) for pattern in patterns])
    assert told == [[], ["1"], [], [], ["2"], []]
