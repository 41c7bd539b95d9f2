"""Scripts cut into statements; and of a wrong script, exactly where and what is wrong."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot.errors import TokenError
from sqlglot.tokens import Token

from tests.support.examples import examples
from tocsin.language.syntax import script
from tocsin.language.syntax.dialect import Tocsin
from tocsin.language.syntax.statements import Query, Statement, Use
from tocsin.wire.errors import StatementError


def refused(text: str) -> StatementError:
    with pytest.raises(StatementError) as found:
        list(script.statements(text))
    return found.value


def test_a_script_may_hold_several_statements_and_comments_of_every_kind() -> None:
    text = """
    // one; not a statement
    USE a; -- two; neither
    /* three;
       "four" */ SELECT 'in; side', "-- no comment", `//`;;
    ; use b"""
    found = list(script.statements(text))
    assert [type(item) for item in found] == [Use, Query, Use]
    assert [piece.text for piece in found] == ["USE a", "SELECT 'in; side', \"-- no comment\", `//`", "use b"]
    assert [script.place(text, item.offset) for item in found] == [(3, 5), (5, 18), (6, 7)]


HOSTILE_SCRIPTS = {
    "semicolons": ";" * (2 << 20),
    "words": "1 " * (1 << 20),
    "an array": "SELECT VALUE [" + "1," * (1 << 20) + "1];",
    "brackets": "(" * (2 << 20),
    "half of it behind a good statement": "USE a; " + "x," * (1 << 20),
}


@pytest.mark.parametrize("text", HOSTILE_SCRIPTS.values(), ids=HOSTILE_SCRIPTS)
def test_a_statement_of_too_many_words_is_refused(text: str) -> None:
    assert f"more than {script.TOKENS_LIMIT:,} words and signs" in str(refused(text))


def test_a_script_of_too_many_statements_is_refused_after_the_ones_that_count() -> None:
    assert sum(1 for _ in script.statements("USE a;" * 10_000)) == 10_000
    parsing = script.statements("USE a;" * 10_001)
    assert sum(1 for _ in zip(range(10_000), parsing, strict=False)) == 10_000
    with pytest.raises(StatementError, match="more than 10,000 statements") as found:
        next(parsing)
    assert found.value.statement == 10_001


def test_only_the_words_of_one_statement_are_in_memory() -> None:
    parsing = script.statements("SELECT 1, 2, 3;\n" * script.TOKENS_LIMIT)
    tracemalloc.start()
    try:
        assert sum(1 for _ in zip(parsing, range(200), strict=False)) == 200
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 << 20


@given(st.lists(st.sampled_from([*"ab;'\"`\\/*-#{}()[]\n r1", "--", "//", "/*", "*/", "r'", "execute "])).map("".join))
@settings(max_examples=examples(300))
def test_tokens_are_the_same_whether_a_script_is_read_at_once_or_by_statements(text: str) -> None:
    def shapes(tokens: Iterable[Token]) -> list[tuple[object, ...]]:
        return [(token.token_type, token.text, token.start, token.end) for token in tokens]

    try:
        expected = shapes(Tocsin().tokenize(text))
    except TokenError:
        with pytest.raises(StatementError):
            list(script.read_tokens(text))
    else:
        assert shapes(script.read_tokens(text)) == expected


@pytest.mark.parametrize("text", ["", " ", ";", ";;\n;", "-- only", "// only", "/* only */", "\ufeff"[1:]])
def test_a_script_of_nothing_has_no_statements(text: str) -> None:
    assert list(script.statements(text)) == []


def test_statements_before_a_bad_one_are_read() -> None:
    reading = script.statements("USE a; USE b; CREATE nonsense")
    assert [next(reading).text, next(reading).text] == ["USE a", "USE b"]
    with pytest.raises(StatementError) as found:
        next(reading)
    assert (found.value.statement, found.value.line, found.value.column) == (3, 1, 22)


END = "the end of the statement"
WRONG: list[tuple[str, int, int, str, str]] = [
    # script, line, column, offending text, expected
    ("SELECT", 1, 7, END, "expected an expression"),
    ("SELECT 1 FROM", 1, 14, END, "expected table name"),
    ("SELECT 1 FROM; SELECT 2", 1, 14, END, "expected table name"),
    ("SELECT FROM D", 1, 8, "'FROM'", "expected an expression"),
    ("SELECT 1 1", 1, 10, "'1'", "expected an operator, a clause or the end of the statement"),
    ("SELECT a b c FROM D", 1, 12, "'c'", "expected an operator, a clause or the end of the statement"),
    ("SELECT 1 +", 1, 11, END, "expected an expression"),
    ("SELECT VALUE r FROM D r WHERE", 1, 30, END, "expected an expression"),
    ("SELECT a FROM D GROUP BY", 1, 25, END, "expected an expression"),
    ("SELECT a FROM D ORDER BY", 1, 25, END, "expected an expression"),
    ("SELECT * FROM D LIMIT", 1, 22, END, "expected an expression"),
    ("SELECT CASE WHEN 1 THEN 2", 1, 26, END, "expected END"),
    ("SELECT CAST(1 AS)", 1, 17, "')'", "expected TYPE"),
    ("SELECT SOME x IN a", 1, 19, END, "expected SATISFIES"),
    ("SELECT {1: 2}", 1, 9, "'1'", "expected a field name"),
    ("SELECT {'a' 1}", 1, 9, "'a'", "expected a field such as name: value"),
    ("SELECT {'a': }", 1, 14, "'}'", "expected a value"),
    ("SELEC 1", 1, 1, "'SELEC'", "expected a statement: "),
    ("foo bar", 1, 1, "'foo'", "expected a statement: "),
    ("f(1) x", 1, 6, "'x'", "expected an operator, a clause or the end of the statement"),
    ("WITH x AS SELECT 1 SELECT 2", 1, 11, "'SELECT'", "expected an expression after AS"),
    ("WITH x 1 SELECT 2", 1, 8, "'1'", "expected WITH name AS expression"),
    ("LET x = 1 x", 1, 11, "'x'", "expected SELECT or FROM after LET"),
    ("LET x SELECT 1", 1, 7, "'SELECT'", "expected LET name = expression"),
    ("FROM D", 1, 7, END, "expected SELECT after FROM, WHERE and GROUP BY"),
    ("FROM D ORDER BY a SELECT 1", 1, 19, "'SELECT'", "expected SELECT after FROM, WHERE and GROUP BY"),
    ("FROM D SELECT 1 FROM E", 1, 23, END, "expected FROM once, before SELECT"),
    ("SELECT 1 FROM D d JOIN d.a x AT i ON x = 1", 1, 42, "'1'", "expected no AT in a JOIN"),
    ("SELECT 1 FROM [1] AT i", 1, 19, "'AT'", "expected AS name before AT"),
    ("SELECT 1 FROM D d GROUP BY d.a GROUP AS g(d)", 1, 44, "')'", "expected GROUP AS name(variable AS field, …)"),
    ("SET", 1, 4, END, "expected the name of an option"),
    ("SET x = 'y'", 1, 7, "'='", "expected the value in quotes"),
    ("WRITE OUTPUT nc1", 1, 7, "'OUTPUT'", "expected OUTPUT TO"),
    ("WRITE OUTPUT TO nc1 'x'", 1, 21, "'x'", "expected : and a file in quotes"),
    ("CREATE OR REPLACE TYPE t", 1, 19, "'TYPE'", "expected FUNCTION"),
    ("CREATE OR REPLACE FUNCTION f() IF NOT EXISTS { 1 }", 1, 28, "'f'", "expected OR REPLACE or IF NOT EXISTS"),
    ("INSERT INTO D {} RETURNING", 1, 27, END, "expected an expression after RETURNING"),
    ("CREATE", 1, 7, END, "expected DATAVERSE, TYPE, [ACTIVE] DATASET, INDEX"),
    ("CREATE TABLE t", 1, 8, "'TABLE'", "expected DATAVERSE, TYPE, [ACTIVE] DATASET, INDEX"),
    ("CREATE TYPE", 1, 12, END, "expected the name of a type"),
    ("CREATE TYPE T\n  {a: int}", 2, 3, "'{'", "expected AS"),
    ("CREATE TYPE T AS {a int}", 1, 21, "'int'", "expected : and a type after the field's name"),
    ("CREATE TYPE T AS {a: }", 1, 22, "'}'", "expected the name of a type"),
    ("CREATE TYPE T AS {\n  a: int,\n}", 3, 1, "'}'", "expected the name of a field"),
    ("CREATE TYPE T AS {a: int b: int}", 1, 26, "'b'", "expected , or } after a field"),
    ("CREATE DATASET D PRIMARY KEY a", 1, 18, "'PRIMARY KEY'", "expected (Type) after the dataset's name"),
    (
        "CREATE DATASET D PRIMARY KEY (a: int)",
        1,
        18,
        "'PRIMARY KEY'",
        "expected (Type) after the dataset's name: CREATE",
    ),
    ("CREATE DATASET D(T) WITH META(M) PRIMARY KEY a", 1, 21, "'WITH'", "expected no WITH META: a record has"),
    ("CREATE SYNONYM s FOR d", 1, 8, "'SYNONYM'", "expected no CREATE SYNONYM: write dataverse.dataset"),
    ("CREATE VIEW v AS SELECT 1", 1, 8, "'VIEW'", "expected no CREATE VIEW: write CREATE FUNCTION"),
    ("CREATE EXTERNAL DATASET d(T)", 1, 8, "'EXTERNAL'", "expected no CREATE EXTERNAL: write CREATE DATASET, and LOAD"),
    ("CREATE NODEGROUP n ON a", 1, 8, "'NODEGROUP'", "expected no CREATE NODEGROUP: leave it out"),
    ("CREATE INGESTION POLICY p FROM POLICY q", 1, 8, "'INGESTION'", "expected no CREATE INGESTION: leave it out"),
    ("DROP SYNONYM s", 1, 6, "'SYNONYM'", "expected no DROP SYNONYM"),
    ("COPY d FROM localfs", 1, 1, "'COPY'", "expected a statement: write LOAD DATASET"),
    ("CREATE DATASET D(T)", 1, 20, END, "expected PRIMARY KEY"),
    ("CREATE DATASET D(T) PRIMARY KEY", 1, 32, END, "expected the name of a field"),
    ("CREATE DATASET D(T) PRIMARY KEY a WITH 5", 1, 40, "'5'", "expected { after WITH"),
    ("CREATE ACTIVE TYPE T", 1, 15, "'TYPE'", "expected DATASET"),
    ("CREATE INDEX i D(a)", 1, 16, "'D'", "expected ON"),
    ("CREATE INDEX i ON D(a) TYPE HASH", 1, 29, "'HASH'", "expected BTREE, RTREE, KEYWORD"),
    ("CREATE FUNCTION f", 1, 18, END, "expected (parameters)"),
    ("CREATE FUNCTION f(a b){1}", 1, 21, "'b'", "expected , or ) after a parameter"),
    ("CREATE FUNCTION f(a, a){1}", 1, 22, "'a'", "expected parameters with different names"),
    ("CREATE FUNCTION f(a) RETURNS int {1}", 1, 34, "'{'", "expected LANGUAGE PYTHON"),
    ("CREATE FUNCTION f(a) LANGUAGE R AS 'm:f'", 1, 31, "'R'", "expected PYTHON"),
    ("CREATE FUNCTION f(a) LANGUAGE PYTHON", 1, 37, END, 'expected AS "module:function"'),
    ("CREATE FUNCTION f(a) LANGUAGE PYTHON AS m", 1, 41, "'m'", 'expected "module:function"'),
    ("CREATE FUNCTION f(a) LANGUAGE PYTHON AS 'm.f'", 1, 41, "'m.f'", 'expected "module:function"'),
    ("CREATE FUNCTION f(a) LANGUAGE PYTHON AS '../m:f'", 1, 41, "'../m:f'", 'expected "module:function"'),
    ("CREATE FUNCTION f(a) 1", 1, 22, "'1'", "expected { and the function's body, or LANGUAGE PYTHON"),
    ("CREATE FUNCTION f(a) {}", 1, 23, "'}'", "expected a query or an expression"),
    ("CREATE FUNCTION f(a) {1 2}", 1, 25, "'2'", "expected } after the function's body"),
    ("DROP TABLE x", 1, 6, "'TABLE'", "expected DATAVERSE, TYPE, DATASET, INDEX"),
    ("DROP INDEX i", 1, 13, END, "expected dataset.index"),
    ("DROP FUNCTION f@", 1, 17, END, "expected the number of parameters after @"),
    ("DROP DATASET D IF", 1, 16, "'IF'", "expected an operator, a clause or the end of the statement"),
    ("USE", 1, 4, END, "expected the name of a dataverse"),
    ("USE 5", 1, 5, "'5'", "expected the name of a dataverse"),
    ("INSERT D {}", 1, 8, "'D'", "expected INTO"),
    ("INSERT INTO D", 1, 14, END, "expected a query, an object or an array of objects"),
    ("DELETE D", 1, 8, "'D'", "expected FROM"),
    ("DELETE FROM D WHERE", 1, 20, END, "expected a condition after WHERE"),
    ("LOAD D", 1, 6, "'D'", "expected DATASET"),
    ('LOAD DATASET D USING localfs (("path"))', 1, 38, "')'", "expected ="),
    ('LOAD DATASET D USING localfs (("path"=5))', 1, 39, "'5'", "expected an option's value in quotes"),
    ("EXPLAIN", 1, 8, END, "expected a query after EXPLAIN"),
    ("EXPLAIN CHANNEL", 1, 16, END, "expected the name of a channel"),
    ("CONNECT FEED f TO DATASET D WHERE a > 1", 1, 29, "'WHERE'", "expected no WHERE: APPLY FUNCTION"),
    ("CONNECT FEED f TO DATASET D APPLY FUNCTION g, h", 1, 45, "','", "expected one function"),
    ("CREATE BROKER b", 1, 16, END, "expected AT"),
    ("CREATE BROKER b AT here", 1, 20, "'here'", "expected the broker's address in quotes"),
    ("CREATE CHANNEL c", 1, 8, "'CHANNEL'", "expected REPETITIVE or CONTINUOUS before CHANNEL"),
    ("CREATE REPETITIVE PROCEDURE p", 1, 19, "'PROCEDURE'", "expected CHANNEL"),
    ("CREATE REPETITIVE CHANNEL c", 1, 28, END, "expected USING function@arity, or (parameters) and { query }"),
    ("CREATE REPETITIVE CHANNEL c USING f@1", 1, 38, END, "expected PERIOD and a duration"),
    ("CREATE REPETITIVE CHANNEL c USING f@1 PERIOD 5", 1, 46, "'5'", "expected a duration such as"),
    ("CREATE REPETITIVE CHANNEL c USING f@1\nPERIOD 'P1X'", 2, 8, "'P1X'", "expected an ISO 8601 duration"),
    ("CREATE REPETITIVE CHANNEL c USING f@1 PERIOD 'PT0S'", 1, 46, "'PT0S'", "a period is at least a tenth"),
    ("CREATE REPETITIVE CHANNEL c USING f@1 PERIOD '-P1D'", 1, 46, "'-P1D'", "a period goes forward"),
    ("CREATE REPETITIVE CHANNEL c USING f@1 PERIOD 'P200Y'", 1, 46, "'P200Y'", "a period is at most 100 years"),
    ("CREATE CONTINUOUS CHANNEL c(p) {1} PERIOD 'P1D' PERIOD 'P1D'", 1, 49, "'PERIOD'", "expected PERIOD once"),
    ("CREATE CONTINUOUS CHANNEL c(p, p) {1}", 1, 32, "'p'", "expected parameters with different names"),
    ("CREATE CONTINUOUS CHANNEL c(p: ) {1}", 1, 32, "')'", "expected the name of a type"),
    ("CREATE CONTINUOUS CHANNEL c(p) {}", 1, 33, "'}'", "expected a query"),
    ("CREATE CONTINUOUS CHANNEL c(p) {1 2}", 1, 35, "'2'", "expected } after the channel's query"),
    ("CREATE PROCEDURE p", 1, 19, END, "expected (parameters)"),
    ("CREATE PROCEDURE p() {}", 1, 23, "'}'", "expected an INSERT, an UPSERT, a DELETE or a query"),
    ("CREATE PROCEDURE p() {USE x}", 1, 27, "'x'", "expected } after the procedure's statement"),
    ("EXECUTE p", 1, 10, END, "expected (arguments)"),
    ("EXECUTE p(1 2)", 1, 13, "'2'", "expected , or ) after an argument"),
    ("EXECUTE p(1,)", 1, 13, "')'", "expected an expression"),
    ("SUBSCRIBE c(1) ON b", 1, 11, "'c'", "expected TO"),
    ("SUBSCRIBE TO c(1)", 1, 18, END, "expected ON"),
    ("UNSUBSCRIBE 5 FROM c", 1, 13, "'5'", "expected a subscription's id in quotes"),
    ("UNSUBSCRIBE 'x'", 1, 16, END, "expected FROM"),
    ("CHANGE 'x' ON c TO b", 1, 8, "'x'", "expected SUBSCRIPTION"),
    ("CHANGE SUBSCRIPTION 'x' ON c", 1, 29, END, "expected TO"),
    ("DROP PROCEDURE p@", 1, 18, END, "expected the number of parameters after @"),
]


@pytest.mark.parametrize(("text", "line", "column", "offending", "expected"), WRONG, ids=[case[0] for case in WRONG])
def test_a_wrong_script_is_told_where_and_what_was_expected(
    text: str, line: int, column: int, offending: str, expected: str
) -> None:
    error = refused(text)
    assert (error.line, error.column, error.statement) == (line, column, 1)
    assert error.message.startswith(f"syntax error at {offending}: {expected}")
    # Two statements and three lines further down, all is as much further down.
    later = refused(f"USE a;\n-- b\nUSE c;\n{text}")
    assert (later.line, later.column, later.statement) == (line + 3, column, 3)
    assert later.message == error.message


MARKS = [
    ("SELECT 'abc", 1, 8, "the string or name that begins with ' is never closed"),
    ('SELECT 1,\n  "abc', 2, 3, 'the string or name that begins with " is never closed'),
    ("SELECT `abc", 1, 8, "the string or name that begins with ` is never closed"),
    ("SELECT 1 /* never", 1, 10, "the comment is never closed"),
    ("SELECT (1", 1, 8, "'(' is never closed"),
    ("SELECT [1, 2", 1, 8, "'[' is never closed"),
    ("SELECT {'a': (1}", 1, 16, "unexpected '}': expected the end of '('"),
    ("SELECT 1)", 1, 9, "unexpected ')': nothing is open here"),
    ("SELECT 1e", 1, 8, "'1e' is not a number"),
    ("SELECT \ud800", 1, 8, "half of a surrogate pair is no character"),
    ("SELECT 'a\udfff'", 1, 10, "half of a surrogate pair is no character"),
    ("SELECT " + "(" * 101 + "1" + ")" * 101, 1, 108, "brackets are nested more than 100 deep"),
]


@pytest.mark.parametrize(("text", "line", "column", "message"), MARKS, ids=[case[3] for case in MARKS])
def test_marks_without_their_pair_are_told(text: str, line: int, column: int, message: str) -> None:
    error = refused(text)
    assert (error.line, error.column, error.message) == (line, column, message)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT " + " + ".join(["1"] * 5_000), "SELECT " + "NOT " * 2_000 + "true", "SELECT a" + ".b" * 3_000,
        "SELECT a" + "[0]" * 3_000, "SELECT " + "CASE WHEN true THEN " * 500 + "1" + " END" * 500,
        "SELECT 1" + " UNION ALL SELECT 1" * 3_000, "SELECT " + "- " * 3_000 + "1", "SELECT " + "a -> " * 2_000 + "1",
    ],
    ids=lambda text: str(text)[:20],
)  # fmt: skip
def test_what_is_nested_too_deeply_is_told_so_with_a_place(text: str) -> None:
    error = refused(text)
    assert "nested" in error.message
    assert error.line is not None


def test_long_but_shallow_statements_are_read() -> None:
    for text in (
        "SELECT " + ", ".join(["1"] * 5_000),
        "SELECT " + " AND ".join(["a = 1"] * 900),
        "SELECT '" + "x" * 10**6 + "'",
    ):
        assert len(list(script.statements(text))) == 1


_WORDS = st.sampled_from(
    [
        *(
            "SELECT VALUE FROM WHERE GROUP BY AS g ORDER LIMIT LET UNNEST LEFT JOIN ON WITH UNION ALL "
            "DISTINCT CREATE DROP TYPE DATASET INDEX FUNCTION DATAVERSE IF NOT EXISTS PRIMARY KEY "
            "BROKER AT REPETITIVE CONTINUOUS PUSH CHANNEL PERIOD PROCEDURE EXECUTE SUBSCRIBE TO UNSUBSCRIBE CHANGE "
            "SUBSCRIPTION AUTOGENERATED USE INSERT INTO UPSERT DELETE LOAD USING EXPLAIN CASE WHEN THEN ELSE END SOME "
            "EVERY IN SATISFIES IS MISSING NULL UNKNOWN AND OR BETWEEN LIKE CAST OVER PARTITION INTERVAL a b "
            "D T int 1 2.5 1e 'x' \"y\" `z` ( ) [ ] { } {{ }} , ; . : :: = <> < <=> + - * / % || -> @ ? $ ! ~ "
            "^ & | # \\ // -- /* */ é 名"
        ).split(),
        "\n",
        "\x00",
    ]
)
_TEXTS = st.one_of(
    st.lists(_WORDS, max_size=25).map(" ".join),
    st.text(max_size=60),
    st.text(st.characters(), max_size=20).map(lambda inside: f"SELECT VALUE {inside} FROM D d"),
    st.text("'\"`\\/*-\n;()[]{}a1 ", max_size=40),
    st.sampled_from([case[0] for case in WRONG]).flatmap(
        lambda text: st.integers(0, len(text)).map(lambda n: text[:n] + text[n + 1 :])
    ),
)


@settings(max_examples=examples(500))
@given(_TEXTS)
def test_any_text_at_all_is_read_or_refused_with_a_place(text: str) -> None:
    found, error = _read(text)
    for piece in found:
        assert text[piece.offset :].startswith(piece.text)
    if error is not None:
        assert error.line is not None
        assert error.column is not None
        assert error.statement is not None
        assert 1 <= error.line <= text.count("\n") + 1
        error.message.encode()  # a message can always be sent


def _read(text: str) -> tuple[list[Statement], StatementError | None]:
    try:
        return list(script.statements(text)), None
    except StatementError as error:
        return [], error


@settings(max_examples=examples(200))
@given(_TEXTS)
def test_any_text_at_all_is_a_functions_body_or_refused(text: str) -> None:
    with suppress(StatementError):
        script.parse_query(text)
