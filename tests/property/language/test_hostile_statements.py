"""Statements made of hostile pieces: whatever they are, what would run reads only our relations, and none is a fault
of ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import AnalysisException

from tests.support.bad_scripts import SETUP
from tests.support.examples import examples
from tocsin.cluster.statements.statement_scope import StatementScope
from tocsin.language.syntax.script import parse_query
from tocsin.language.translate.expressions import TranslationError
from tocsin.language.types.typed_sql import FunctionError
from tocsin.wire.errors import TocsinError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.served_cluster import ServedCluster

# 'true' in octal: sqlglot would write plain letters as capitals where the payload is a function's name.
_SHELL = r"(SELECT first(o) FROM (SELECT TRANSFORM(1) USING '\164\162\165\145' AS (o STRING)))"
_FILE = "(SELECT first(value) FROM text.`/etc/hostname`)"
_FILE_QUOTED = _FILE.replace("`", "``")
_PAYLOADS = (
    _SHELL, _FILE, f"1) + {_SHELL} + (1", f"x`, {_FILE_QUOTED}, `y", f"abs(1) + {_SHELL}", f"') + {_SHELL} + ('",
    f"*/ {_SHELL} /*", f"\\' || {_SHELL} || \\'", "identifier('abs')", "YEAR FROM DATE(1)) + (1", "reflect",
    "input_file_name", "current_user", "INT) + (1", "x -> 1, y", "range(1) CROSS JOIN range", "", "\n", "\0", "\\",
    "é😀", "\u2028", "/*", "--", "*/", "${spark.app.name}", ":now", "{{", "0x41", "tocsin_python_x",
)  # fmt: skip
_payloads = st.sampled_from(_PAYLOADS)


def _quoted(quote: str) -> st.SearchStrategy[str]:
    """Well quoted for the most part, so that it gets far; else with escapes in it, or badly."""
    kept = "\\" if quote == "`" else "\\\\"
    good = _payloads.map(lambda text: quote + text.replace("\\", kept).replace(quote, quote * 2) + quote)
    escaped = _payloads.map(lambda text: quote + text.replace("\\", "\\\\").replace(quote, f"\\{quote}") + quote)
    bad = _payloads.map(lambda text: f"{quote}{text}{quote}")
    return st.integers(0, 19).flatmap(lambda drawn: {18: escaped, 19: bad}.get(drawn, good))


_names = st.one_of(st.sampled_from(["abs", "d", "x", "id", "said", "identifier", "reflect", "range"]), _quoted("`"))
_texts = st.one_of(_quoted("'"), _quoted('"'), st.sampled_from(["r'a'", "N'a'", "x'41'", "'\\151\\144'"]))
_comments = st.builds(
    lambda opening, text, closing: f"{opening}{text}{closing}",
    st.sampled_from(["/*+ ", "/* ", "/*+ BROADCAST(`"]),
    _payloads,
    st.sampled_from([" */", "\n*/", "`) */"]),
)
_leaves = st.one_of(
    st.sampled_from(["1", "d.id", "d.said", "[1, 2]", "null", "datetime('2026-01-01T00:00:00Z')"]), _texts
)
_types = st.integers(0, 9).flatmap(lambda drawn: _names if drawn == 9 else st.sampled_from(["int", "string", "json"]))
# One hostile piece in most, so that the rest of the statement does not hide what becomes of it.
_inner = st.integers(0, 9).flatmap(lambda drawn: _values if drawn == 9 else _leaves)
_values = st.deferred(
    lambda: st.one_of(
        _leaves,
        st.builds("{}({})".format, _names, _inner),
        st.builds("{}({} => {})".format, _names, _names, _inner),
        st.builds("{}({} := {})".format, _names, _names, _inner),
        st.builds("EXTRACT({} FROM {})".format, _names, _inner),
        st.builds("INTERVAL {} {}".format, _inner, st.sampled_from(["DAY", "`DAY`", "SAID"])),
        st.builds("CAST({} AS {})".format, _inner, _types),
        st.builds("CAST({} AS STRUCT<{}: INT>)".format, _inner, _names),
        st.builds("{}::{}".format, _inner, _types),
        st.builds("transform([1], {} -> {})".format, _names, _inner),
        st.builds(
            "{}() OVER (PARTITION BY {} ROWS BETWEEN {} PRECEDING AND CURRENT ROW)".format, _names, _inner, _inner
        ),
        st.builds("count({} {})".format, st.sampled_from(["*", "DISTINCT", "* EXCEPT"]), _inner),
        st.builds("struct({} AS {})".format, _inner, _names),
        st.builds("{{{}: {}}}".format, _texts, _inner),
        st.builds("{} COLLATE {}".format, _inner, _names),
        st.builds(
            "{} {} {}".format, _inner, st.sampled_from(["LIKE", "RLIKE", "ILIKE", "||", "=", "IN", "->"]), _inner
        ),
        st.builds("{} LIKE {} ESCAPE {}".format, _inner, _texts, _texts),
        st.builds("{} {}".format, _comments, _inner),
        st.builds("(SELECT VALUE {} FROM {})".format, _inner, _sources),
        st.builds("TRIM({} {} FROM {})".format, st.sampled_from(["BOTH", "`x y`"]), _inner, _inner),
        st.builds("{}[{}]".format, _inner, _inner),
        st.builds("{}.{}".format, _names, _names),
        st.builds("meta({}).{}".format, st.sampled_from(["d", "1"]), _names),
        st.builds("{}({})".format, st.sampled_from(["active_timestamp", "current_channel_time"]), _inner),
        st.builds("(LET {} = {} SELECT VALUE {} FROM {})".format, _names, _inner, _inner, _sources),
    )
)
_sources = st.deferred(
    lambda: st.one_of(
        st.sampled_from(["v.D d", "v.D AS d", "[1, 2] AS d"]),
        st.builds("{} AS d".format, _names),
        st.builds("{}.{} AS d".format, _names, _names),
        st.builds("{}({}) AS d".format, _names, _inner),
        st.builds("VALUES ({}) AS d({})".format, _inner, _names),
        st.builds("(SELECT {} AS {} FROM v.D d) AS {}".format, _inner, _names, _names),
        st.builds("v.D d JOIN v.D {} USING ({})".format, _names, _names),
        st.builds("{} AS d AT {}".format, _names, _names),
        st.builds("v.D d UNNEST {} AS {} AT {}".format, _inner, _names, _names),
    )
)
_queries = st.one_of(
    st.builds("SELECT {} VALUE {} FROM {}".format, st.one_of(st.just(""), _comments), _values, _sources),
    st.builds("SELECT {} AS {} FROM {} GROUP BY {}".format, _values, _names, _sources, _inner),
    st.builds("SELECT VALUE {} FROM v.D d WHERE {} ORDER BY {} LIMIT {}".format, _values, _inner, _inner, _inner),
    st.builds("WITH {} AS (SELECT VALUE {}) SELECT VALUE x FROM {} x".format, _names, _values, _names),
    st.builds("FROM {} SELECT VALUE {}".format, _sources, _values),
    st.builds("WITH {} AS {} FROM {} WHERE {} SELECT ELEMENT {}".format, _names, _values, _sources, _inner, _values),
    st.builds("WITH {} AS {} SELECT VALUE {} FROM {} x".format, _names, _values, _names, _names),
    st.builds(
        "SELECT {}, (SELECT VALUE {} FROM g) AS {} FROM {} GROUP BY {} AS {} GROUP AS g".format,
        _inner,
        _inner,
        _names,
        _sources,
        _inner,
        _names,
    ),
    st.builds(
        "SELECT VALUE {} FROM {} GROUP BY {} GROUP AS {}({} AS {})".format,
        _names,
        _sources,
        _inner,
        _names,
        _inner,
        _names,
    ),
)
_statements = st.one_of(
    _queries,
    st.builds("EXPLAIN {}".format, _queries),
    st.builds("CREATE FUNCTION v.h(a) {{ {} }}".format, st.one_of(_queries, _values)),
    st.builds("INSERT INTO v.D ({})".format, _queries),
    st.builds("DELETE FROM v.D d WHERE {}".format, _values),
    st.builds("CREATE CONTINUOUS CHANNEL v.c(p) {{ SELECT VALUE {} FROM v.D d WHERE d.said = p }}".format, _values),
    st.builds("CREATE PROCEDURE v.p(a) {{ {} }}".format, _queries),
    st.builds("SET {} {}".format, _names, _texts),
    st.builds("WRITE OUTPUT TO {}:{}".format, _names, _texts),
    st.builds("CREATE OR REPLACE FUNCTION v.h(a) {{ {} }}; v.h({})".format, st.one_of(_queries, _values), _inner),
    st.builds("UPSERT INTO v.D AS {} ({}) RETURNING {}".format, _names, _queries, _values),
    st.builds('UPSERT INTO v.D AS {} ({{"id": 1, "said": {}}}) RETURNING {}'.format, _names, _texts, _values),
)  # fmt: skip

# Relations that read nothing but what the statement itself says, and those that stand for others.
_HARMLESS = {"OneRowRelation", "OneRowRelation$", "LocalRelation", "Range", "CTERelationRef"}


@pytest.fixture(scope="module")
def served(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCluster]:
    from tests.support.served_cluster import ServedCluster

    cluster = ServedCluster(spark, tmp_path_factory.mktemp("hostile") / "data")
    assert cluster.client.run(SETUP).status == 200
    yield cluster
    cluster.close()


def leaves(nodes: list[Any]) -> Iterator[str]:
    """The relations of a plan as Spark tells it in JSON, those of plans within expressions too; a view is one."""
    at = 0

    def below() -> Iterator[str]:
        nonlocal at
        node = nodes[at]
        at += 1
        name = node["class"].rpartition(".")[2]
        if name == "View":
            list(below())
            yield f"view {node['desc']['identifier']['table']}"
            return
        for value in node.values():
            yield from _within(value)
        if not node["num-children"] and ".plans." in node["class"] + ".":
            yield name
        elif not node["num-children"] and ".catalyst.expressions." not in node["class"]:
            yield node["class"]
        if name == "ScriptTransformation":
            yield name
        for _ in range(node["num-children"]):
            yield from below()

    while at < len(nodes):
        yield from below()


def _within(value: Any) -> Iterator[str]:
    if isinstance(value, list) and value and isinstance(value[0], dict) and "num-children" in value[0]:
        yield from leaves(value)
    elif isinstance(value, list):
        for inner in value:
            yield from _within(inner)
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _within(inner)


def test_the_plan_is_read_rightly(spark: SparkSession) -> None:
    spark.range(3).createOrReplaceTempView("tocsin_seen")
    sql = "SELECT (SELECT max(o) FROM (SELECT TRANSFORM(1) USING 'true' AS (o STRING))) FROM tocsin_seen"
    frame: Any = spark.sql(sql)
    plan = json.loads(frame._jdf.queryExecution().analyzed().toJSON())
    spark.catalog.dropTempView("tocsin_seen")
    assert set(leaves(plan)) == {"view tocsin_seen", "ScriptTransformation", "OneRowRelation"}


@settings(max_examples=examples(400), deadline=None)
@given(text=_queries)
def test_what_would_run_reads_only_our_relations(served: ServedCluster, text: str) -> None:
    """By the first check alone: this asks Spark without the second."""
    parts = served.cluster
    engine = parts.engine
    scope = StatementScope(parts.catalog.catalog, parts.tables, engine, "v", datetime.now(UTC))
    try:
        sql = scope.translate(parse_query(text)).sql
    except (TranslationError, FunctionError, TocsinError):
        return  # refused
    finally:
        scope.close()
    try:
        frame: Any = engine.spark.sql(sql)
    except AnalysisException:
        return  # refused by Spark, before anything runs
    found = set(leaves(json.loads(frame._jdf.queryExecution().analyzed().toJSON())))
    assert {name for name in found if not name.startswith("view tocsin_")} <= _HARMLESS, sql


@settings(max_examples=examples(150), deadline=None)
@given(text=_statements)
def test_no_statement_is_a_fault_of_ours(served: ServedCluster, text: str) -> None:
    answer = served.client.run(text)
    assert answer.status < 500, (text, answer)
    if answer.status != 200:
        assert answer.error["message"]
        assert b"Traceback" not in answer.body
    cleaning = "DROP CHANNEL v.c IF EXISTS; DROP PROCEDURE v.p@1 IF EXISTS; DROP FUNCTION v.h@1 IF EXISTS"
    assert answer.status != 200 or served.client.run(cleaning).status == 200
