"""Brokers, channels, subscriptions and procedures: every form, and what it is read as."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from sqlglot import exp

from tocsin.language.syntax import script
from tocsin.language.syntax import statements as st
from tocsin.language.syntax.statements import ChannelParameter, Name
from tocsin.rules.model import types as t
from tocsin.rules.model.values import Duration

DAY = Duration(micros=86_400_000_000)
SECONDS_20 = Duration(micros=20_000_000)


def one(text: str) -> Any:
    (found,) = script.statements(text)
    return found


def unplaced(found: Any) -> Any:
    """The statement without places, and with its expressions as text."""
    kept: dict[str, Any] = {}
    for part in fields(found):
        value = getattr(found, part.name)
        if isinstance(value, Name):
            kept[part.name] = replace(value, offset=0)
        elif isinstance(value, tuple):
            kept[part.name] = tuple(
                replace(item, offset=0) if isinstance(item, ChannelParameter) else shown(item) for item in value
            )
        elif isinstance(value, dict):
            kept[part.name] = {name: shown(item) for name, item in value.items()}
    return replace(found, **{**kept, "offset": 0, "text": "", **({"body_offset": 0} if hasattr(found, "body") else {})})


def shown(item: Any) -> Any:
    return item.sql() if isinstance(item, exp.Expr) else item


def channel(**said: Any) -> st.CreateChannel:
    return st.CreateChannel(name=Name("c"), **said)


def arguments(*texts: str) -> Any:
    return texts


STATEMENTS: list[tuple[str, st.Statement]] = [
    ('CREATE BROKER b AT "http://b:1/x"', st.CreateBroker(name=Name("b"), url="http://b:1/x")),
    (
        "create broker v.b if not exists at 'http://b'",
        st.CreateBroker(name=Name("b", "v"), url="http://b", if_not_exists=True),
    ),
    (
        "CREATE BROKER b AT 'http://b' IF NOT EXISTS",
        st.CreateBroker(name=Name("b"), url="http://b", if_not_exists=True),
    ),
    (
        "CREATE BROKER IF NOT EXISTS b AT 'http://b'",
        st.CreateBroker(name=Name("b"), url="http://b", if_not_exists=True),
    ),
    (
        'CREATE REPETITIVE CHANNEL c USING f@2 PERIOD duration("PT20S")',
        channel(continuous=False, function=Name("f"), arity=2, period=SECONDS_20),
    ),
    (
        'create repetitive push channel c if not exists using v.f@0 period "P1D"',
        channel(
            continuous=False, push=True, function=Name("f", "v"), arity=0, period=DAY, if_not_exists=True
        ),
    ),
    (
        'CREATE REPETITIVE CHANNEL c USING f(a) PERIOD Day_Time_Duration("P1D")',
        channel(continuous=False, function=Name("f"), arity=1, period=DAY),
    ),
    (
        'CREATE REPETITIVE CHANNEL c USING f PERIOD year_month_duration("P1Y2M")',
        channel(continuous=False, function=Name("f"), period=Duration(months=14)),
    ),
    (
        "CREATE REPETITIVE CHANNEL c USING f@1 WITH {'retention': duration('P1D'), 'retention-bytes': 5} PERIOD 'P1D'",
        channel(
            continuous=False, function=Name("f"), arity=1, period=DAY,
            options={"retention": "DURATION('P1D')", "retention-bytes": "5"},
        ),
    ),
    (
        "CREATE CONTINUOUS CHANNEL c(p, `q r`: point, s: [string]) { SELECT VALUE r FROM D r WHERE r.a = p }",
        channel(
            continuous=True,
            parameters=(
                ChannelParameter("p"),
                ChannelParameter("q r", t.POINT),
                ChannelParameter("s", st.CollectionText(t.STRING, item_optional=False, multiset=False)),
            ),
            body="SELECT VALUE r FROM D r WHERE r.a = p",
        ),
    ),
    (
        "create continuous push channel c() period 'PT20S' {(select 1);} with {'retention': 'P1D'}",
        channel(continuous=True, push=True, body="(select 1)", period=SECONDS_20, options={"retention": "'P1D'"}),
    ),
    (
        "CREATE CONTINUOUS CHANNEL c(p) { {'a': {}} } PERIOD 'PT20S'",
        channel(continuous=True, parameters=(ChannelParameter("p"),), body="{'a': {}}", period=SECONDS_20),
    ),
    (
        "CREATE REPETITIVE CHANNEL IF NOT EXISTS c(p) PERIOD 'PT20S' { SELECT 1 }",
        channel(
            continuous=False,
            parameters=(ChannelParameter("p"),),
            body="SELECT 1",
            period=SECONDS_20,
            if_not_exists=True,
        ),
    ),
    (
        "CREATE CONTINUOUS CHANNEL c USING f@1",
        channel(continuous=True, function=Name("f"), arity=1),
    ),
    (
        "SUBSCRIBE TO c(1, 'x' || 'y') ON b",
        st.SubscribeStatement(channel=Name("c"), arguments=arguments("1", "'x' || 'y'"), broker=Name("b")),
    ),
    (
        "subscribe to v.c() on w.b",
        st.SubscribeStatement(channel=Name("c", "v"), arguments=(), broker=Name("b", "w")),
    ),
    ('UNSUBSCRIBE "an id" FROM v.c', st.UnsubscribeStatement(subscription="an id", channel=Name("c", "v"))),
    (
        'CHANGE SUBSCRIPTION "an id" ON c(1) TO v.b',
        st.ChangeSubscription(
            subscription="an id", channel=Name("c"), arguments=arguments("1"), broker=Name("b", "v")
        ),
    ),
    (
        "change subscription 'an id' on v.c to b",
        st.ChangeSubscription(subscription="an id", channel=Name("c", "v"), arguments=None, broker=Name("b")),
    ),
    ("EXPLAIN CHANNEL v.c", st.ExplainChannel(channel=Name("c", "v"))),
    ("explain channel channel", st.ExplainChannel(channel=Name("channel"))),
    (
        "CREATE PROCEDURE p(a, b) { INSERT INTO D {'x': a} }",
        st.CreateProcedure(name=Name("p"), parameters=("a", "b"), body="INSERT INTO D {'x': a}", body_offset=0),
    ),
    (
        "create procedure v.p() if not exists { delete from D; } period 'P1D'",
        st.CreateProcedure(
            name=Name("p", "v"), parameters=(), body="delete from D", body_offset=0, period=DAY, if_not_exists=True
        ),
    ),
    ("EXECUTE v.p(1)", st.Execute(procedure=Name("p", "v"), arguments=arguments("1"))),
    ("execute p()", st.Execute(procedure=Name("p"), arguments=())),
    ("DROP BROKER v.b", st.DropBroker(name=Name("b", "v"))),
    ("DROP BROKER b IF EXISTS", st.DropBroker(name=Name("b"), if_exists=True)),
    ("DROP CHANNEL IF EXISTS c", st.DropChannel(name=Name("c"), if_exists=True)),
    ("drop channel v.c", st.DropChannel(name=Name("c", "v"))),
    ("DROP PROCEDURE p", st.DropProcedure(name=Name("p"), arity=None)),
    ("DROP PROCEDURE v.p@2 IF EXISTS", st.DropProcedure(name=Name("p", "v"), arity=2, if_exists=True)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), STATEMENTS, ids=[text for text, _ in STATEMENTS])
def test_a_statement_is_read_as_what_it_says(text: str, expected: st.Statement) -> None:
    assert unplaced(one(text)) == expected
    assert unplaced(one(f"/* before */ {text} ; -- after")) == expected
    assert unplaced(one(f"{text}; // after\n")) == expected
    broken = text.replace(" ", "\n  ") if "an id" not in text and "{" not in text and "`" not in text else text
    assert unplaced(one(broken)) == replace(expected)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("INSERT INTO D {'x': a}", st.Insert),
        ("insert into D ([{'x': a}])", st.Insert),
        ("upsert into v.D (select value r from E r where r.x = a)", st.Insert),
        ("DELETE FROM D", st.Delete),
        ("DELETE FROM D AS d", st.Delete),
        ("delete from D d where d.x = a", st.Delete),
        ("SELECT VALUE r FROM D r WHERE r.x = a", st.Query),
        ("a + 1", st.Query),
        ("{'a': a}", st.Query),
    ],
)
def test_a_procedure_holds_one_statement_that_is_read_again_from_its_text(body: str, kind: type) -> None:
    for text in (body, f"{body};", f"{body}\n"):
        found = one(f"CREATE PROCEDURE p(a) {{ {text} }}")
        assert found.body == body
        assert found.text[found.body_offset :].startswith(body)
        assert isinstance(script.parse_procedure(found.body), kind)


def test_the_place_of_a_body_is_its_place_in_the_script() -> None:
    text = "USE a;\nCREATE CONTINUOUS CHANNEL c(p)\n{\n  SELECT 1\n}"
    *_, found = script.statements(text)
    assert isinstance(found, st.CreateChannel)
    assert script.place(text, found.body_offset) == (4, 3)


@pytest.mark.parametrize("text", ["EXPLAIN channel.a", "EXPLAIN channel(1)", "EXPLAIN channel[0]"])
def test_a_query_may_begin_with_a_name_that_is_also_a_keyword(text: str) -> None:
    assert isinstance(one(text), st.Explain)


def test_channels_in_the_forms_of_the_original_are_read() -> None:
    """With line breaks in odd places and comments of every kind."""
    text = """
    //what is told
    create repetitive channel warningsOfChannel using
    warningsOf@1 period duration("PT10S");
    create repetitive channel warningsOfAtChannel
    using warningsOfAt@3 period duration("PT30S");

    /***** A broker *****/
    create broker BrokerOne at "http://broker.example:8989/notify";
    subscribe to warningsOfChannel("squall") on
    BrokerOne;
    """
    first, second, broker, subscribed = script.statements(text)
    assert isinstance(first, st.CreateChannel)
    assert isinstance(second, st.CreateChannel)
    assert (first.function and first.function.name, first.arity) == ("warningsOf", 1)
    assert (second.arity, second.period) == (3, Duration(micros=30_000_000))
    assert isinstance(broker, st.CreateBroker)
    assert isinstance(subscribed, st.SubscribeStatement)


def test_a_whole_script_in_those_forms_is_read() -> None:
    text = (Path(__file__).parents[3] / "support" / "original_forms.sql").read_text()
    assert {type(found) for found in script.statements(text)} >= {st.CreateFunction, st.CreateIndex, st.CreateDataset}


def test_a_broker_may_have_options() -> None:
    (made,) = script.statements("CREATE BROKER b AT 'http://b' with {'broker-type': 'BAD'}")
    assert isinstance(made, st.CreateBroker)
    assert list(made.options) == ["broker-type"]
