"""Regular expressions as they are matched here: as Spark does it, but for those that would never end."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot import exp

from tests.support.examples import examples
from tests.support.waiting import WITHIN_S, wait_until
from tocsin.cluster.engine.spark_errors import translate_spark_error
from tocsin.language.translate.spark_text import render, render_for_analysis
from tocsin.language.types.typed_sql import build, string
from tocsin.pipeline.plan_check import analyse_query
from tocsin.wire.errors import StatementError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ATOMS = st.sampled_from(
    ["a", "b", ".", r"\d", r"\w", r"\s", "[a-c]", "[^a]", "[]a]", "[a&&[^b]]", "é", "😀", r"\Qa.\E", r"\Q\E", "^", "$",
     r"\b", r"\B", r"\A", r"\z", "()", "(|a)", r"\p{L}", r"\x{61}", r"\x62", "(?i)A", "(?s).", r"\R", r"\(", "-"]
)  # fmt: skip
_QUANTIFIERS = st.sampled_from(["", "", "?", "*", "+", "{2}", "{0,2}", "{1,}", "??", "*?", "+?", "?+", "*+", "{1,2}?"])
_OPENINGS = st.sampled_from(["(", "(?:", "(?>", "(?=", "(?!", "(?<n>", "(?i:"])


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.tuples(inner, inner).map("|".join),
        st.tuples(_OPENINGS, inner, _QUANTIFIERS).map(lambda parts: f"{parts[0]}{parts[1]}){parts[2]}"),
    )


_REGEXES = st.recursive(_ATOMS, _grown, max_leaves=8).filter(lambda one: one.count("(?<n>") < 2)
_TEXTS = st.text(st.sampled_from("aabbcA1 .-\né😀("), max_size=10)
_CALLS = [
    "rlike(t, p)", "regexp_like(t, p)", "regexp_count(t, p)", "regexp_extract(t, p, 0)", "regexp_extract_all(t, p, 0)",
    "regexp_instr(t, p)", "regexp_replace(t, p, '<$0>')", "regexp_replace(t, p, 'x', 3)", "regexp_substr(t, p)",
    "split(t, p)", "split(t, p, 2)", "split(t, p, 1)", "split(t, p, 0)",
    "transform(array(t, 'ab', null), __x -> regexp_count(__x, p))",
]  # fmt: skip


def call(text: str, **parts: exp.Expr) -> exp.Expr:
    """As the language makes it of a statement: with no class of sqlglot's for any function."""
    tree = build(re.sub(r"\b(\w+)\(", r"named_\1(", text), **parts)
    for node in tree.find_all(exp.Anonymous):
        node.set("this", str(node.this).removeprefix("named_"))
    return tree


def calls(*texts: str) -> exp.Select:
    return exp.select("t", "p", *(exp.alias_(call(text), f"c{i}") for i, text in enumerate(texts))).from_(
        "tocsin_regex"
    )


def rows_of(spark: SparkSession, cases: list[tuple[Any, ...]], columns: str = "t STRING, p STRING") -> None:
    spark.createDataFrame(cases, columns).createOrReplaceTempView("tocsin_regex")


@settings(max_examples=examples(20))
@given(cases=st.lists(st.tuples(_TEXTS, _REGEXES), min_size=5, max_size=40))
def test_the_answers_are_those_of_spark(spark: SparkSession, cases: list[tuple[str, str]]) -> None:
    jvm: Any = spark._jvm

    def is_right(regex: str) -> bool:
        try:
            jvm.java.util.regex.Pattern.compile(regex)
        except Exception:
            return False
        return True

    right = [(text, regex) for text, regex in cases if is_right(regex)]
    right += [
        (None, "a"),
        ("a", None),
        ("a,b", ","),
        ("", ""),
        ("ab", ""),
        ("😀bc", ""),
        ("", ","),
        ("a.b", "."),
        ("a|b", "|"),
    ]
    rows_of(spark, right)
    tree = calls(*_CALLS)
    assert analyse_query(spark, render(tree)).collect() == spark.sql(render_for_analysis(tree)).collect()


def test_what_delimits_a_map_is_one_too_and_a_key_of_a_url_is_none(spark: SparkSession) -> None:
    rows_of(spark, [("a:1,b:2;c,d:", "[,;]"), ("", "x"), (None, "x"), ("a:1", None), ("k:v", ":")])
    tree = calls("str_to_map(t, p)", "str_to_map(t, p, '[:]')", "str_to_map(t)", "str_to_map(t, ';', p)")
    assert analyse_query(spark, render(tree)).collect() == spark.sql(render_for_analysis(tree)).collect()
    url = "http://x/?a.c=1&abc=2&(a+)+$=3&\\E=4"
    keys = {"a.c": "1", "abc": "2", "a": None, "(a+)+$": "3", ".*": None}
    rows_of(spark, [(url.replace("\\", "%5C"), key) for key in keys])
    found = analyse_query(spark, render(calls("try_parse_url(t, 'QUERY', p)", "parse_url(t, 'HOST')"))).collect()
    assert [(row.c0, row.c1) for row in found] == [(value, "x") for value in keys.values()]


E = "e" * 400
ENDLESS = [
    ("rlike(t, p)", E, ".*e" * 9 + ".*z"),
    ("regexp_like(t, p)", "a" * 60 + "!", r"(b?)(a|aa)+\1$"),
    ("regexp_count(t, p)", "ab" * 60 + "!", r"(c?)(\w|\w\w)+\1$"),
    ("regexp_extract(t, p, 0)", E, "(.*e){9}.*z"),
    ("regexp_extract_all(t, p, 0)", E, "(?:.*e){9}.*z"),
    ("regexp_instr(t, p)", E, ".*e" * 9 + ".*z"),
    ("regexp_replace(t, p, 'x')", E, ".*e" * 9 + ".*z"),
    ("regexp_substr(t, p)", E, ".*e" * 9 + ".*z"),
    ("split(t, p)", E, ".*e" * 9 + ".*z"),
    ("str_to_map(t, p)", E, ".*e" * 9 + ".*z"),
    ("size(filter(array(t, t), __x -> rlike(__x, p)))", E, ".*e" * 9 + ".*z"),
    # Those that look at no character.
    ("rlike(t, p)", "", "(|)" * 60 + "x"),
    ("rlike(t, p)", "", "(a?|b?)" * 60 + "x"),
    ("rlike(t, p)", "", "((a*)*|(?<n1>b*)*)?" + "(a?|b*)" * 60 + "x"),
    ("rlike(t, p)", "ab", "(|)" * 60 + "(?!)"),
    ("rlike(t, p)", "", "(?:(?:(?:){1000000}){1000000}){1000000}"),
    ("rlike(t, p)", "", r"(?:(?:(?:)\Q\E{1000000}){1000000}){1000000}"),
    ("rlike(t, p)", "", r"\Q(\E?[](]?[^](]?[a[b(]]?\c(?\(?" + "(|)" * 60 + "x"),
    ("rlike(t, p)", "aaa", "(?<=(?!)a{0,999999}|" * 5 + "b" + ")" * 5),
    ("rlike(t, p)", "", "(?i)(?-i:" + "(?=|)(^|$)" * 60 + r"\d)"),
]


@pytest.mark.parametrize(("asked", "text", "regex"), ENDLESS)
@pytest.mark.parametrize("is_constant", [True, False], ids=["constant", "column"])
def test_what_would_never_end_ends_with_an_error(
    spark: SparkSession, asked: str, text: str, regex: str, is_constant: bool
) -> None:
    rows_of(spark, [(text, regex)])
    tree = calls(asked)
    if is_constant:
        constants = {"t": string(text), "p": string(regex)}
        tree = exp.select(call(asked, **constants))
    with pytest.raises(StatementError, match=r"takes more than 50,000,000 steps on one value") as refused:
        run(spark, tree)
    assert "repetitions within repetitions" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("asked", "text", "regex", "why"),
    [
        ("rlike(t, p)", "a", "(", "the regular expression '(' is wrong: Unclosed group"),
        ("rlike(t, p)", "a", "a{2,1}\n", "is wrong: Illegal repetition range"),
        ("rlike(t, p)", "a", "(?x) a", "cannot have the flag x"),
        ("rlike(t, p)", "a", "(?i-x:a)", "cannot have the flag x"),
        ("rlike(t, p)", "ab" * 100_000, "(a|b)*c", "needs more memory"),
        ("rlike(t, p)", "a", "(" * 40_000 + ")" * 40_000, "Stack overflow"),
        ("regexp_extract(t, p)", "a", "a", "has no group 1"),
        ("regexp_extract_all(t, p, 3)", "a", "(a)", "has no group 3"),
        ("regexp_replace(t, p, '$1')", "a", "a", "the replacement '\\$1' is wrong: No group 1"),
        ("regexp_replace(t, p, '$')", "a", "a", "the replacement '\\$' is wrong"),
    ],
)
def test_what_is_wrong_is_said(spark: SparkSession, asked: str, text: str, regex: str, why: str) -> None:
    rows_of(spark, [(text, regex)])
    with pytest.raises(StatementError, match=why.replace("(", r"\(")) as refused:
        run(spark, calls(asked))
    assert refused.value.hint


@pytest.mark.parametrize(
    "regex",
    [
        r"^[\w.+-]+@[\w-]+(\.[\w-]+)+$", r"(\s*\w*,?)*;", r"\b(fire|flood|storm|quake)s?\b",
        r"(?i)^.*(evacuat|shelter).*$",
        r"^(?=.*\d)(?=.*[a-z]).{8,}$", "(" + "|".join(f"word{i}" for i in range(2_000)) + ")", r"(a*)*(b*)*(c*)*d",
        r"(?<!\d)\d{3}(?:[ -]?\d{2}){2}(?!\d)", r"^(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)(?:\.(?!$)|$)){4}$", r"(\w)\1", "",
    ],
)  # fmt: skip
def test_what_people_write_is_matched_also_in_long_texts(spark: SparkSession, regex: str) -> None:
    rows_of(spark, [(None, regex)])
    text = "'the evening breeze, and 17 trees. ' "
    tree = exp.select(call(f"rlike(repeat({text}, 300), p)")).from_("tocsin_regex")
    assert run(spark, tree)[0][0] in (True, False)


def run(spark: SparkSession, tree: exp.Expr) -> list[Any]:
    try:
        return analyse_query(spark, render(tree)).collect()
    except StatementError:
        raise
    except Exception as error:
        raise translate_spark_error(error) from error


# So slow that a thousand of them take minutes, and not so slow that one is refused.
SLOW = call("rlike(t, '.*e.*e.*e.*z')")


@contextmanager
def asked_in_group(spark: SparkSession, ask: Callable[[], object]) -> Iterator[tuple[threading.Thread, str]]:
    group = uuid4().hex

    def work() -> None:
        spark.sparkContext.setJobGroup(group, "slow", interruptOnCancel=True)
        try:
            ask()
        except Exception:
            return
        raise AssertionError("it was not stopped")

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield thread, group
    finally:
        cancel(spark, group)
        thread.join(WITHIN_S)


def cancel(spark: SparkSession, group: str) -> None:
    spark.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(group, "cancelled")  # type: ignore[attr-defined]


def running_tasks(spark: SparkSession) -> int:
    tracker: Any = spark.sparkContext._jsc.sc().statusTracker()  # type: ignore[attr-defined]
    return sum(executor.numRunningTasks() for executor in tracker.getExecutorInfos())


def test_a_statement_that_is_stopped_frees_its_slots(spark: SparkSession) -> None:
    slots = spark.sparkContext._jsc.sc().defaultParallelism()  # type: ignore[attr-defined]
    rows = spark.range(0, 1_000 * slots, 1, slots).selectExpr("repeat('e', 64 + 0 * id) AS t")
    rows.createOrReplaceTempView("tocsin_regex")
    sql = render(exp.select("t").from_("tocsin_regex").where(SLOW))
    with asked_in_group(spark, analyse_query(spark, sql).collect) as (thread, group):
        wait_until(lambda: running_tasks(spark) == slots, "all slots are taken")
        cancel(spark, group)
        wait_until(lambda: running_tasks(spark) == 0, "all slots are free")
        thread.join(WITHIN_S)
        assert not thread.is_alive()


def test_so_does_one_that_spark_answers_while_it_plans(spark: SparkSession) -> None:
    """Rows that are at hand are filtered by the optimizer, where there is no task that could be killed."""
    values = ", ".join(f"('{'e' * 64}')" for _ in range(1_000))
    spark.sql(f"SELECT * FROM VALUES {values} AS rows(t)").createOrReplaceTempView("tocsin_regex")
    frame: Any = analyse_query(spark, render(exp.select("t").from_("tocsin_regex").where(SLOW)))
    begun = threading.Event()

    def plan() -> None:
        begun.set()
        frame._jdf.queryExecution().executedPlan()

    with asked_in_group(spark, plan) as (thread, group):
        assert begun.wait(WITHIN_S)
        assert running_tasks(spark) == 0
        cancel(spark, group)
        thread.join(WITHIN_S)
        assert not thread.is_alive()
