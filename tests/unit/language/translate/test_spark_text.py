"""What may become text for Spark: quoted identifiers, escaped literals, and words from our own lists."""

from __future__ import annotations

import ast
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlglot import exp

import tocsin
from tests.support.channel_compiler import FunctionOf, Names
from tocsin.language.channels.compiler import compile_shared_query
from tocsin.language.functions import function_registry
from tocsin.language.syntax.script import parse_body
from tocsin.language.translate.expressions import TranslationError
from tocsin.language.translate.spark_text import render
from tocsin.language.translate.translator import QueryHooks, Translator
from tocsin.language.types.typed_sql import FunctionError
from tocsin.rules.model import types as t
from tocsin.rules.model.types import Type
from tocsin.wire.errors import StatementError

_SHELL = "(SELECT array_join(collect_list(o),'/') FROM (SELECT TRANSFORM(1) USING '\\151\\144' AS (o STRING)))"

REFUSED = [
    # (expression, what the error says, and what its remedy says)
    (f"`{_SHELL} || string`('x')", "cannot be called here", "lists what"),
    (f"abs(1) + `{_SHELL} + abs`(1)", "cannot be called here", "lists what"),
    (f"EXTRACT(`YEAR FROM DATE(1)) + {_SHELL} + (1` FROM datetime('2026-01-01T00:00:00Z'))", "unknown unit", "year"),
    ("EXTRACT(yeer FROM datetime('2026-01-01T00:00:00Z'))", "unknown unit YEER", "did you mean year"),
    (f"abs(`x {_SHELL}` => 1)", "named arguments are not supported", "by position"),
    ("abs(x => 1)", "named arguments are not supported", "by position"),
    (
        '(SELECT VALUE x FROM identifier("text.`/etc/passwd`") AS x)',
        "identifier cannot be called in FROM",
        "one of explode",
    ),
    ('identifier("abs")', "identifier cannot be called here", "lists what"),
    (f"(SELECT VALUE x FROM `range(1), {_SHELL} `(1) AS x)", "cannot be called in FROM", "one of explode"),
    (
        "(SELECT VALUE x FROM python_worker_logs() AS x)",
        "python_worker_logs cannot be called in FROM",
        "one of explode",
    ),
    (f"`row_number() OVER (), {_SHELL} `() OVER (ORDER BY 1)", "cannot be called here", "lists what"),
    ("sum(1) OVER (ORDER BY 1 ROWS BETWEEN (SELECT 1) PRECEDING AND CURRENT ROW)", "a window begins", "ROWS BETWEEN"),
    (
        "(SELECT VALUE x FROM VALUES (reflect('java.lang.System', 'exit')) AS x(a))",
        "reflect cannot be called here",
        "docs/language.md lists what can be called",
    ),
    (
        "java_method('java.lang.System', 'exit')",
        "java_method cannot be called here",
        "docs/language.md lists what can be called",
    ),
    ("input_file_name()", "input_file_name cannot be called here", "docs/language.md lists what can be called"),
    (
        "from_xml('<a/>', 'a INT', map('rowValidationXSDPath', '/etc/passwd'))",
        "from_xml cannot be called here",
        "docs/language.md lists what can be called",
    ),
    ("current_user()", "current_user cannot be called here", "docs/language.md lists what can be called"),
    ("'a' COLLATE `UTF8_BINARY, (SELECT 1)`", "no part of this language", "operators and functions"),
    ("2 ^ 3", "^ means a power in SQL++", "power(a, b)"),
    ("(SELECT d.* EXCLUDE a FROM [{'a': 1}] AS d)", "* takes no EXCLUDE", "name the fields"),
    ("(SELECT * EXCEPT (a) FROM [{'a': 1}] AS d)", "* takes no EXCLUDE", "name the fields"),
    ("uper('x')", "uper cannot be called here", "did you mean upper? docs/language.md lists what"),
]


class NoOracle:
    """No question about a hostile statement gets as far as Spark, unless it is harmless by then."""

    def columns(self, sql: str) -> list[tuple[str, Type]]:
        assert "TRANSFORM" not in sql
        assert "passwd" not in sql
        return [("c", t.BIGINT)]


def translated(body: str, *, own: tuple[FunctionOf, ...] = ()) -> str:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    hooks = QueryHooks(None, now)  # type: ignore[arg-type]
    return Translator(Names(own), NoOracle(), hooks, "d").translate(parse_body(body)).sql


@pytest.mark.parametrize(("body", "reason", "remedy"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_what_is_no_name_of_ours_is_refused_at_its_place(body: str, reason: str, remedy: str) -> None:
    for statement in (f"SELECT VALUE {body}", f"SELECT VALUE 1 + (SELECT VALUE {body})[0]"):
        with pytest.raises(TranslationError) as refused:
            translated(statement)
        assert reason in refused.value.message
        assert remedy in (refused.value.hint or "")
        assert refused.value.hint
        assert refused.value.offset is not None


@pytest.mark.parametrize(("body", "reason"), [case[:2] for case in REFUSED], ids=[str(i) for i in range(len(REFUSED))])
def test_so_it_is_in_functions_and_channels(body: str, reason: str) -> None:
    own = FunctionOf("hostile", ("k",), body)
    with pytest.raises(TranslationError, match="in function hostile") as refused:
        translated("SELECT VALUE hostile(1)", own=(own,))
    assert reason in refused.value.message
    channel = parse_body(f"SELECT VALUE {body} FROM Reports r WHERE r.kind = k")
    with pytest.raises(TranslationError) as refused:
        compile_shared_query(
            channel, ("k",), {}, names=Names(()), type_analyser=NoOracle(), dataverse="d", continuous=True
        )
    assert reason in refused.value.message or "a window function" in refused.value.message


@pytest.mark.parametrize(
    "text", ["CAST(1 AS `INT) + (SELECT 1`)", "CAST(1 AS `string`)", f"INTERVAL '1' `DAY) + {_SHELL}`", "SELECT /*+ x"]
)
def test_what_cannot_be_read_is_a_syntax_error(text: str) -> None:
    with pytest.raises(StatementError):
        parse_body(f"SELECT VALUE {text}")


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT /*+ BROADCAST(`x) */ VALUE 1",
        "SELECT /*+ REPARTITION(100000) */ VALUE 1",
        "SELECT VALUE 1 --+ BROADCAST(x)\n",
        "SELECT VALUE 1 /* /* */",
        "SELECT VALUE /* */ 1 -- */ , (SELECT 1)",
    ],
)
def test_comments_and_hints_do_not_reach_spark(statement: str) -> None:
    assert translated(statement) == translated("SELECT VALUE 1")


@pytest.mark.parametrize(
    "tree",
    [
        exp.Anonymous(this="reflect", expressions=[]),
        exp.Anonymous(this="abs(1), x", expressions=[]),
        exp.Anonymous(this=exp.to_identifier("abs", quoted=True), expressions=[]),
        exp.Anonymous(this="tocsin_python_1", expressions=[]),
        exp.to_identifier("a b", quoted=False),
        exp.Var(this="YEAR FROM x"),
        exp.Literal(this="1) + (2", is_string=False),
        exp.HexString(this="41' || 'x"),
        exp.Join(this=exp.to_table("a"), kind="CROSS JOIN b ON (1), c"),
        exp.Command(this="DROP", expression="TABLE x"),
        exp.cast(exp.Literal.number(1), exp.DataType.build("a b", udt=True)),
        exp.Select(expressions=[exp.Star()], hint=exp.Hint(expressions=[exp.Anonymous(this="REPARTITION")])),
    ],
    ids=repr,
)
def test_no_tree_with_foreign_text_is_written(tree: exp.Expr) -> None:
    with pytest.raises(FunctionError):
        render(exp.Select(expressions=[tree]) if not isinstance(tree, exp.Query) else tree)


def test_quotes_and_backticks_stay_within_what_they_are_part_of() -> None:
    text = "a'b\\'c`d\"e\\"
    tree = exp.Select(expressions=[exp.alias_(exp.Literal.string(text), text, quoted=True)])
    assert render(tree) == "SELECT 'a\\'b\\\\\\'c`d\"e\\\\' AS `a'b\\'c``d\"e\\`"


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("approx_count_distinct(1, 0.0000001)", "a deviation from 0.01 to 0.39"),
        ("approx_count_distinct(1, 0)", "a deviation from 0.01 to 0.39"),
        ("approx_count_distinct(1, 1.0 / 1e9)", "a deviation from 0.01 to 0.39"),
        ("approx_count_distinct(1, 0.0000001) OVER ()", "a deviation from 0.01 to 0.39"),
        ("stack(200000000, 1)", "at most 1000"),
        ("stack(1000 * 1000, 1)", "at most 1000"),
        ("(SELECT VALUE x FROM stack(200000000, 1) AS x)", "at most 1000"),
        ("(SELECT VALUE x FROM range(0, 10, 1, 200000000) AS x)", "a start, an end and a step"),
        ("window(now(), '1000 days', '1 second')", "more than 1000 windows"),
        ("window(now(), '2 weeks 1 day', '1 MICROSECOND', '1 second')", "more than 1000 windows"),
        ("window(now(), 1000000000, 1)", "more than 1000 windows"),
        ("window(now(), '1 day', concat('1', ' second'))", "durations such as"),
        ("window(now(), '1 day', '0 seconds')", "durations such as"),
        ("window(now(), '1 day', '1 blink')", "durations such as"),
    ],
)
def test_no_argument_makes_a_plan_as_large_as_it_says(call: str, reason: str) -> None:
    with pytest.raises(TranslationError, match=reason):
        translated(f"SELECT VALUE {call}")


@pytest.mark.parametrize(
    "call",
    [
        "approx_count_distinct(1)",
        "approx_count_distinct(1, 0.01)",
        "stack(2, 1, 2)",
        "(SELECT VALUE x FROM stack(2, 1, 2) AS x)",
        "(SELECT VALUE x FROM range(0, 10, 1) AS x)",
        "window(now(), '1000 days')",
        "window(now(), '1 hour', '1 minute')",
        "window(now(), 'interval 1 day 2 hours', '15 minutes', '5 minutes')",
    ],
)
def test_ordinary_sizes_are_taken(call: str) -> None:
    assert translated(f"SELECT VALUE {call}")


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ("LIMIT r", "LIMIT takes a number that is known before the query runs"),
        ("LIMIT 1 OFFSET 2 * r", "OFFSET takes a number that is known before the query runs"),
        ("LIMIT 'a'", "LIMIT takes a whole number, this is of type string"),
        ("LIMIT '1'", "LIMIT takes a whole number, this is of type string"),
        ("LIMIT 1.5", "LIMIT takes a whole number, this is of type double"),
        ("LIMIT null", "LIMIT takes a whole number"),
        ("LIMIT [1, 2]", "LIMIT takes a whole number"),
        ("LIMIT true", "LIMIT takes a whole number, this is of type boolean"),
        ("LIMIT -1", "LIMIT takes a number from 0 on, this is -1"),
        ("LIMIT 1 - 2", "LIMIT takes a number from 0 on, this is -1"),
        ("LIMIT 1 OFFSET -1", "OFFSET takes a number from 0 on, this is -1"),
        ("LIMIT abs(3)", "LIMIT takes a number that is known before the query runs"),
    ],
)
def test_a_limit_that_spark_would_not_take_is_refused_at_its_place(limit: str, reason: str) -> None:
    with pytest.raises(TranslationError, match=reason) as refused:
        translated(f"SELECT VALUE r FROM [1, 2] AS r {limit}")
    assert refused.value.hint
    assert refused.value.offset is not None or limit in ("LIMIT null", "LIMIT true"), "these words have no place"


@pytest.mark.parametrize(
    ("limit", "made"),
    [
        ("LIMIT 3", "LIMIT 3"),
        ("LIMIT 3000000000", "LIMIT 2147483647"),
        ("LIMIT (2 + 3) * 2 OFFSET 1 - 1", "LIMIT 10 OFFSET 0"),
        ("LIMIT CAST(3 AS int)", "LIMIT 3"),
    ],
)
def test_a_limit_is_a_constant_of_whole_numbers(limit: str, made: str) -> None:
    assert translated(f"SELECT VALUE r FROM [1, 2] AS r {limit}").endswith(made)


def test_a_limit_may_be_a_parameter_and_that_of_a_list_may_come_from_outside() -> None:
    top = FunctionOf("top", ("n",), "SELECT VALUE r FROM [1, 2] AS r LIMIT n")
    assert "SLICE" in translated("SELECT VALUE top(x) FROM [1, 2] AS x", own=(top,)).upper()
    assert translated("SELECT VALUE f FROM top(1 + 1) f", own=(top,)).count("LIMIT 2") == 1
    with pytest.raises(TranslationError, match="in function top: LIMIT takes a number that is known"):
        translated("SELECT VALUE f FROM [1, 2] AS x, top(x) f", own=(top,))


def test_a_text_beside_a_window_stays_what_it_is() -> None:
    """Control characters go over as bytes there, too: Spark has other escapes than the writer of the text."""
    sql = translated("SELECT VALUE lag('a', 1, '\x071') OVER (ORDER BY 1)")
    assert "X'0731'" in sql


@pytest.mark.parametrize(
    "cast", ["CAST('a' AS STRING COLLATE UNICODE)", "CAST(1 AS INT FORMAT 'YYYY')", "CAST('a' AS `STRING`)"]
)
def test_what_a_type_cannot_have_is_refused_not_left_out(cast: str) -> None:
    with pytest.raises((TranslationError, StatementError)):
        translated(f"SELECT VALUE {cast}")


def test_every_function_of_the_docs_can_be_called() -> None:
    """Those of the table of SQL++ names and Spark's own that the guide names."""
    for name in ("size", "element_at", "transform", "array_sort", "row_number", "collect_list", "rlike", "lower"):
        assert name in function_registry.NAMES
    assert not function_registry.NAMES & {
        "reflect",
        "java_method",
        "try_reflect",
        "from_xml",
        "input_file_name",
        "xpath",
    }


SOURCES = Path(tocsin.__file__).parent
# Who may hand text to Spark, and who may make text of a tree for it.
ASKS_SPARK = {
    "pipeline/plan_check.py",
    "pipeline/python/functions.py",
    "pipeline/class_archive.py",
}  # the last with constants of its own, in a session that ends at once
WRITES_SQL = {
    "language/translate/spark_text.py",
    "language/functions/text_functions.py",
}  # the second for error messages alone


def test_all_text_for_spark_passes_both_checks() -> None:
    asking, writing = set(), set()
    for path in SOURCES.rglob("*.py"):
        name = path.relative_to(SOURCES).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr == "generate":
                writing.add(name)
            if node.func.attr != "sql":
                continue
            if any(keyword.arg == "dialect" for keyword in node.keywords):
                writing.add(name)
            elif "spark" in ast.unparse(node.func.value):
                asking.add(name)
    assert asking == ASKS_SPARK
    assert writing <= WRITES_SQL | {"language/types/typed_sql.py"}  # a number of ours, read back


def test_the_guide_lists_what_can_be_called() -> None:
    guide = (SOURCES.parents[1] / "docs" / "language.md").read_text()
    section = guide.split("### Functions of Spark\n")[1].split("\n### ")[0]
    told = {
        kind: frozenset(re.findall(r"`(\w+)`", names))
        for kind, names in re.findall(r"^\| ([^|`]+) \| (`.+) \|$", section, re.MULTILINE)
    }
    assert told == function_registry.SPARK_FUNCTIONS
    assert all(f"`{name}`" in section.split("| of |")[0] for name in function_registry.TABLE_FUNCTIONS)
