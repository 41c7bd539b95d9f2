"""What stands in Spark's SQL for the functions that match regular expressions."""

from __future__ import annotations

import re

import pytest
from sqlglot import exp

from tocsin.cluster.engine.spark_errors import translate_spark_error
from tocsin.language.functions import function_registry
from tocsin.language.functions.bounds import like_patterns
from tocsin.language.functions.bounds.regular_expressions import NAMES
from tocsin.language.translate.spark_text import render, render_for_analysis
from tocsin.language.types.typed_sql import FunctionError, build, string
from tocsin.pipeline.java_functions import function_problem
from tocsin.wire.errors import CapacityError, StatementError

CALLS = {
    "rlike": "t, p", "regexp": "t, p", "regexp_like": "t, p", "regexp_count": "t, p", "regexp_extract": "t, p",
    "regexp_extract_all": "t, p, 0", "regexp_instr": "t, p", "regexp_replace": "t, p, 'x'", "regexp_substr": "t, p",
    "split": "t, p", "str_to_map": "t, p, p", "parse_url": "t, 'QUERY', p", "try_parse_url": "t, 'QUERY', p",
}  # fmt: skip


def called(name: str, *arguments: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this=name, expressions=[argument.copy() for argument in arguments])


def arguments_of(name: str) -> list[exp.Expr]:
    return list(build(f"a_function({CALLS[name]})").expressions)


def matched_by_spark(sql: str) -> set[str]:
    return {name.lower() for name in re.findall(r"(?i)\b\w+(?=\()|\brlike\b|\bregexp\b", sql)} & {
        *NAMES.difference(("parse_url", "try_parse_url"))
    }


def test_every_such_function_that_can_be_called_is_known() -> None:
    named = {name for name in function_registry.NAMES if "regexp" in name or "rlike" in name}
    assert named | {"split", "str_to_map", "parse_url", "try_parse_url"} == NAMES == set(CALLS)
    assert NAMES <= function_registry.NAMES


@pytest.mark.parametrize("name", sorted(CALLS))
@pytest.mark.parametrize("write", [str.lower, str.upper, str.title])
def test_spark_never_runs_its_own(name: str, write: object) -> None:
    tree = exp.select(called(write(name), *arguments_of(name)))  # type: ignore[operator]
    text = render(tree).lower()
    assert not matched_by_spark(text)
    assert "tocsin_" in text or r"\\q" in text
    assert "tocsin_" not in render_for_analysis(tree).lower(), "what it takes is a question about Spark's own"


def test_also_where_one_stands_within_another_or_within_like() -> None:
    inner = called("regexp_replace", exp.column("t"), string("a+"), string("b"))
    outer = called("split", called("upper", inner), called("regexp_extract", inner, string("(b)")))
    like = exp.Like(this=called("element_at", outer, exp.Literal.number(1)), expression=string("%a_b%"))
    text = render(
        exp.select(exp.RegexpLike(this=called("if", like, string("x"), inner), expression=exp.column("p")))
    ).lower()
    assert not matched_by_spark(text)
    assert text.count("tocsin_regexp_like(") == 2
    assert text.count("tocsin_regexp_replace(") == 3


@pytest.mark.parametrize("name", ["tocsin_regexp_like", "tocsin_split", "TOCSIN_REGEXP_REPLACE"])
def test_nobody_else_calls_ours(name: str) -> None:
    for write in (render, render_for_analysis):
        with pytest.raises(FunctionError, match="unknown function"):
            write(exp.select(called(name, exp.column("t"), string("a"))))


def test_there_is_a_limit_to_the_length_of_a_pattern_of_like() -> None:
    long = "a" * like_patterns.LETTERS
    assert list(like_patterns.split_pattern(long, "\\"))
    with pytest.raises(FunctionError, match="at most 10,000 characters"):
        list(like_patterns.split_pattern(f"{long}a", "\\"))


class _Thrown:
    """What Java threw."""

    def __init__(self, kind: str, message: str, cause: _Thrown | None = None) -> None:
        self._kind, self._message, self._cause = kind, message, cause

    def getMessage(self) -> str:
        return self._message

    def getClass(self) -> _Thrown:
        return self

    def getName(self) -> str:
        return self._kind

    def getCause(self) -> _Thrown | None:
        return self._cause


def test_only_what_ours_throw_is_read_as_theirs() -> None:
    def error(kind: str, message: str) -> Exception:
        made = Exception("x")
        made.java_exception = _Thrown("org.apache.spark.SparkException", "[X] y", _Thrown(kind, message))  # type: ignore[attr-defined]
        return made

    ours = translate_spark_error(
        error("java.lang.IllegalArgumentException", "tocsin regex: it is wrong\nwrite it well")
    )
    assert (ours.message, ours.hint) == ("it is wrong", "write it well")
    by_others = translate_spark_error(error("java.lang.RuntimeException", "tocsin regex: it is wrong\nwrite it well"))
    assert isinstance(by_others, CapacityError), "nothing says that a row is to blame"
    assert by_others.hint == "ask again, or make the statement smaller"
    inside = translate_spark_error(
        error("java.lang.IllegalArgumentException", "said: tocsin regex: it is wrong\nwrite it well")
    )
    assert isinstance(inside, StatementError)
    assert inside.hint is None
    assert function_problem("a record that says tocsin regex: x\ny") is None
