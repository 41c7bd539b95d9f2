"""Every form of every statement, and what it is read as."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlglot import exp

from tocsin.language.syntax import nodes, script
from tocsin.language.syntax import statements as st
from tocsin.language.syntax.statements import CollectionText, FieldText, Name, ObjectText
from tocsin.rules.model import types as t


def one(text: str) -> Any:
    (found,) = script.statements(text)
    return found


def unplaced(found: Any) -> Any:
    """The statement without the places of its names."""
    kept = {
        part: replace(name, offset=0)
        for part in ("name", "dataset")
        if isinstance(name := getattr(found, part, None), Name)
    }
    return replace(found, offset=0, text="", **kept)


D = Name("D")

STATEMENTS: list[tuple[str, st.Statement]] = [
    ("USE v", st.Use(dataverse="v")),
    ("use dataverse v", st.Use(dataverse="v")),
    ("USE `odd name`", st.Use(dataverse="odd name")),
    ("CREATE DATAVERSE v", st.CreateDataverse(name="v")),
    ("CREATE DATAVERSE IF NOT EXISTS v", st.CreateDataverse(name="v", if_not_exists=True)),
    ("create dataverse v if not exists", st.CreateDataverse(name="v", if_not_exists=True)),
    ("CREATE INDEX i ON D(a)", st.CreateIndex(name="i", dataset=D, fields=(("a",),))),
    ("CREATE INDEX i IF NOT EXISTS ON D(a)", st.CreateIndex(name="i", dataset=D, fields=(("a",),), if_not_exists=True)),
    ("CREATE INDEX IF NOT EXISTS i ON D(a)", st.CreateIndex(name="i", dataset=D, fields=(("a",),), if_not_exists=True)),
    (
        "CREATE INDEX i ON v.D(a.b, c) TYPE BTREE",
        st.CreateIndex(name="i", dataset=Name("D", "v"), fields=(("a", "b"), ("c",))),
    ),
    ("CREATE INDEX i ON D(a) type rtree", st.CreateIndex(name="i", dataset=D, fields=(("a",),), kind="RTREE")),
    (
        "CREATE INDEX i ON D(a: string?) TYPE KEYWORD",
        st.CreateIndex(name="i", dataset=D, fields=(("a",),), types=("string?",), kind="KEYWORD"),
    ),
    ("DROP DATAVERSE v", st.DropDataverse(name="v")),
    ("DROP DATAVERSE v IF EXISTS", st.DropDataverse(name="v", if_exists=True)),
    ("DROP DATAVERSE IF EXISTS v", st.DropDataverse(name="v", if_exists=True)),
    ("DROP TYPE T", st.DropType(name=Name("T"))),
    ("DROP TYPE v.T IF EXISTS", st.DropType(name=Name("T", "v"), if_exists=True)),
    ("DROP TYPE IF EXISTS T", st.DropType(name=Name("T"), if_exists=True)),
    ("DROP DATASET D", st.DropDataset(name=D)),
    ("DROP DATASET D IF EXISTS", st.DropDataset(name=D, if_exists=True)),
    ("DROP DATASET IF EXISTS D", st.DropDataset(name=D, if_exists=True)),
    ("DROP INDEX D.i", st.DropIndex(dataset=D, name="i")),
    ("DROP INDEX v.D.i IF EXISTS", st.DropIndex(dataset=Name("D", "v"), name="i", if_exists=True)),
    ("DROP INDEX IF EXISTS D.i", st.DropIndex(dataset=D, name="i", if_exists=True)),
    ("DROP FUNCTION f", st.DropFunction(name=Name("f"), arity=None)),
    ("DROP FUNCTION f@2", st.DropFunction(name=Name("f"), arity=2)),
    ("DROP FUNCTION f(a, b) IF EXISTS", st.DropFunction(name=Name("f"), arity=2, if_exists=True)),
    ("DROP FUNCTION IF EXISTS v.f@0", st.DropFunction(name=Name("f", "v"), arity=0, if_exists=True)),
    ("DROP FUNCTION f()", st.DropFunction(name=Name("f"), arity=0)),
    (
        'LOAD DATASET D USING localfs (("path"="/a b.json"), ("format"="json"))',
        st.Load(dataset=D, adapter="localfs", options={"path": "/a b.json", "format": "json"}),
    ),
    (
        "CREATE FUNCTION f(a, `b c`) { SELECT VALUE a }",
        st.CreateFunction(name=Name("f"), parameters=("a", "b c"), body="SELECT VALUE a", body_offset=30),
    ),
    ("CREATE FUNCTION f() { 1 }", st.CreateFunction(name=Name("f"), parameters=(), body="1", body_offset=22)),
    (
        "CREATE FUNCTION f(a) IF NOT EXISTS { {'a': {}} }",
        st.CreateFunction(name=Name("f"), parameters=("a",), body="{'a': {}}", body_offset=37, if_not_exists=True),
    ),
    (
        "CREATE FUNCTION IF NOT EXISTS f(a){(select 1)}",
        st.CreateFunction(name=Name("f"), parameters=("a",), body="(select 1)", body_offset=35, if_not_exists=True),
    ),
    (
        'CREATE FUNCTION v.f(a, b) RETURNS string? LANGUAGE PYTHON AS "m.n:C.f"',
        st.CreatePythonFunction(
            name=Name("f", "v"), parameters=("a", "b"), returns=t.STRING, optional=True,
            target="m.n:C.f", target_offset=61,
        ),
    ),
    (
        'create function if not exists f() returns [int] language python as "m:f"',
        st.CreatePythonFunction(
            name=Name("f"), parameters=(), returns=CollectionText(t.BIGINT, False, False), optional=False,
            target="m:f", target_offset=67, if_not_exists=True,
        ),
    ),
    (
        "CREATE FUNCTION f(a) IF NOT EXISTS LANGUAGE PYTHON AS 'm:f'",
        st.CreatePythonFunction(
            name=Name("f"), parameters=("a",), returns=None, optional=True, target="m:f", target_offset=54,
            if_not_exists=True,
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), STATEMENTS, ids=[text for text, _ in STATEMENTS])
def test_a_statement_is_read_as_what_it_says(text: str, expected: st.Statement) -> None:
    assert unplaced(one(text)) == expected
    later = expected
    if isinstance(expected, st.CreateFunction):
        later = replace(expected, body_offset=expected.body_offset + 13)
    if isinstance(expected, st.CreatePythonFunction):
        later = replace(expected, target_offset=expected.target_offset + 13)
    assert unplaced(one(f"/* before */ {text} ; -- after")) == unplaced(later)


KEYS = [
    ("a", (("a",),)),
    ("a, b.c", (("a",), ("b", "c"))),
    ("(a, b)", (("a",), ("b",))),
    ("`odd key`", (("odd key",),)),
    ("timestamp", (("timestamp",),)),
]


@pytest.mark.parametrize(("text", "keys"), KEYS, ids=[text for text, _ in KEYS])
def test_a_primary_key_may_be_simple_nested_or_composite(text: str, keys: Any) -> None:
    found = one(f"CREATE DATASET D(T) PRIMARY KEY {text}")
    assert (found.keys, found.autogenerated, found.active, found.if_not_exists) == (keys, False, False, False)


@pytest.mark.parametrize(
    "text",
    [
        "CREATE ACTIVE DATASET D(v.T) IF NOT EXISTS PRIMARY KEY id AUTOGENERATED WITH {'history': 5}",
        "create active dataset if not exists D(v.T) primary key id autogenerated with {'history': 5}",
    ],
)
def test_a_dataset_takes_all_its_options(text: str) -> None:
    found = one(text)
    assert (found.name.name, found.type.name, found.type.dataverse) == ("D", "T", "v")
    assert (found.active, found.autogenerated, found.if_not_exists, found.keys) == (True, True, True, (("id",),))
    assert found.options["history"].this == "5"


def test_a_type_may_hold_everything() -> None:
    found = one(
        """create type T if not exists as closed {
        a: int, b: int8?, "c d": [string?], `e`: {{point}}, f: open {g: v.Other?}, h: {}, i: DateTime, list: [[uuid]],
        timestamp: timestamp, value: double }"""
    )
    shown = {field.name: (_unplaced_type(field.type), field.optional) for field in found.type.fields}
    assert (found.if_not_exists, found.type.open) == (True, False)
    assert shown == {
        "a": (t.BIGINT, False),
        "b": (t.TINYINT, True),
        "c d": (CollectionText(t.STRING, True, False), False),
        "e": (CollectionText(t.POINT, False, True), False),
        "f": (ObjectText((FieldText("g", Name("Other", "v"), True, 0),), True), False),
        "h": (ObjectText((), False), False),
        "i": (t.DATETIME, False),
        "list": (CollectionText(CollectionText(t.UUID, False, False), False, False), False),
        "timestamp": (t.DATETIME, False),
        "value": (t.DOUBLE, False),
    }


def _unplaced_type(kind: Any) -> Any:
    if isinstance(kind, Name):
        return replace(kind, offset=0)
    if isinstance(kind, ObjectText):
        return ObjectText(tuple(replace(f, type=_unplaced_type(f.type), offset=0) for f in kind.fields), kind.open)
    if isinstance(kind, CollectionText):
        return replace(kind, item=_unplaced_type(kind.item))
    return kind


@pytest.mark.parametrize("written", sorted(t.PRIMITIVES))
def test_every_primitive_type_can_be_named_in_any_case(written: str) -> None:
    if " " in written:
        return
    for text in (written, written.upper()):
        (field,) = one(f"CREATE TYPE T AS {{a: {text}}}").type.fields
        assert field.type == t.PRIMITIVES[written]


@pytest.mark.parametrize("word", ["INSERT", "UPSERT", "insert"])
@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("{'a': 1}", nodes.ObjectOf),
        ("[{'a': 1}]", exp.Array),
        ("(SELECT VALUE 1)", exp.Subquery),
        ("SELECT 1", exp.Select),
        ("({'a': 1})", exp.Paren),
    ],
)
def test_insert_and_upsert_take_objects_arrays_and_queries(word: str, source: str, kind: type) -> None:
    found = one(f"{word} INTO v.D {source}")
    assert isinstance(found, st.Insert)
    assert found.upsert == (word == "UPSERT")
    assert (found.dataset.name, found.dataset.dataverse) == ("D", "v")
    assert isinstance(found.source, kind)
    assert isinstance(one(f"{word} INTO DATASET D {source}"), st.Insert)


@pytest.mark.parametrize(
    ("text", "alias", "conditional"),
    [
        ("DELETE FROM D", None, False),
        ("DELETE FROM D d", "d", False),
        ("DELETE FROM D AS d WHERE d.a = 1", "d", True),
        ("delete from D where a = 1", None, True),
    ],
)
def test_delete_takes_a_name_and_a_condition(text: str, alias: str | None, conditional: bool) -> None:
    found = one(text)
    assert (found.alias, found.where is not None) == (alias, conditional)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("SELECT VALUE r FROM D r", exp.Select),
        ("SELECT 1 UNION ALL SELECT 2", exp.Union),
        ("(SELECT 1)", exp.Subquery),
        ("WITH x AS (SELECT 1) SELECT 2", exp.Select),
        ("1 + 1", exp.Add),
        ("[1]", exp.Array),
        ("{{1}}", nodes.MultisetOf),
        ("{'a': 1}", nodes.ObjectOf),
        ("f(1)", exp.Anonymous),
        ("'text'", exp.Literal),
        ("a.b.c", exp.Expr),
        ("SOME x IN [1], y IN [2] SATISFIES x < y END", nodes.Quantified),
        ("a IS MISSING", nodes.IsKind),
        ("NOT true", exp.Not),
        ("CASE WHEN true THEN 1 END", exp.Case),
    ],
)
def test_a_query_or_an_expression_is_a_statement(text: str, kind: type) -> None:
    found = one(text)
    assert isinstance(found, st.Query)
    assert isinstance(found.query, kind)
    assert isinstance(one(f"EXPLAIN {text}").query, kind)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT VALUE r",
        "SELECT VALUE [r]",
        "SELECT VALUE (1)",
        "select value {'a': 1}",
        "SELECT VALUE -1",
        "SELECT VALUE 'x'",
        "SELECT DISTINCT VALUE r",
    ],
)
def test_select_value_is_told_from_a_column_of_that_name(text: str) -> None:
    assert isinstance(one(f"{text} FROM D r").query.expressions[0], nodes.ValueOf)
    for column in ("value", "value, 1", "value AS v", "value.a", "value = 1", "r.value"):
        assert not any(isinstance(found, nodes.ValueOf) for found in one(f"SELECT {column} FROM D r").query.expressions)


def test_let_and_unnest_keep_their_order() -> None:
    query = one(
        "SELECT x FROM D d LET a = 1, b = a UNNEST d.l AS x LEFT UNNEST x.m y LET c = b WHERE c = 1"
        " GROUP BY c LET n = 1"
    ).query
    made = [join.this for join in query.args["joins"]]
    assert [type(found) for found in made] == [nodes.Let, nodes.Let, nodes.FromValue, nodes.FromValue, nodes.Let]
    assert [bool(found.args.get("outer")) for found in made if isinstance(found, nodes.FromValue)] == [False, True]
    assert len(query.args["group_lets"]) == 1


def test_an_object_within_a_closed_type_is_closed_unless_it_says_otherwise() -> None:
    (created,) = script.statements("CREATE TYPE T AS CLOSED {a: {x: int}, b: [OPEN {y: int}], c: {{ {z: int} }}}")
    assert isinstance(created, st.CreateType)
    assert isinstance(created.type, st.ObjectText)
    inside = [field.type for field in created.type.fields]
    assert [_open(entry) for entry in inside] == [False, True, False]


def _open(type_: st.TypeText) -> bool:
    while isinstance(type_, st.CollectionText):
        type_ = type_.item
    assert isinstance(type_, st.ObjectText)
    return type_.open
