"""Parses statements about brokers, channels and subscriptions.

It is more liberal than AsterixDB: PERIOD and WITH may come before or after a body, in any order.
"""

from __future__ import annotations

from typing import Any

from sqlglot.tokenizer_core import TokenType

from tocsin.language.syntax import statements as st
from tocsin.language.syntax.parser_datasets import period_duration
from tocsin.language.syntax.token_stream import TokenStream


def create_broker(tokens: TokenStream) -> st.Statement:
    name, if_not_exists = tokens.new_name("a broker")
    tokens.need("AT")
    url = tokens.text("the broker's address in quotes")
    if_not_exists = tokens.if_not_exists() or if_not_exists
    return st.CreateBroker(name=name, url=url, options=tokens.options(), if_not_exists=if_not_exists)


def create_channel(tokens: TokenStream, *, continuous: bool) -> st.Statement:
    push = tokens.word("PUSH")
    tokens.need("CHANNEL")
    name, if_not_exists = tokens.new_name("a channel")
    parts: dict[str, Any] = {"continuous": continuous, "push": push}
    if tokens.word("USING"):
        parts["function"] = tokens.full_name("a function")
        parts["arity"] = tokens.arity()
    elif tokens.at(TokenType.L_PAREN):
        parts["parameters"] = tokens.parameters(typed=True)
        if_not_exists = tokens.if_not_exists() or if_not_exists
        _clauses(tokens, parts)
        parts["body_offset"], parts["body"] = tokens.parse_braces(
            "the channel's query", lambda: tokens.query("a query")
        )
    else:
        tokens.refuse("Expected USING function@arity, or (parameters) and { query }")
    _clauses(tokens, parts)
    if not continuous and parts.get("period") is None:
        tokens.refuse("Expected PERIOD and a duration: a repetitive channel runs once a period")
    return st.CreateChannel(name=name, if_not_exists=if_not_exists, **parts)


def _clauses(tokens: TokenStream, parts: dict[str, Any]) -> None:
    """Parses PERIOD and WITH, each at most once."""
    while (clause := tokens.here) is not None:
        part = "period" if tokens.word("PERIOD") else "options" if tokens.at(TokenType.WITH) else None
        if part is None:
            return
        if part in parts:
            tokens.refuse(f"Expected {clause.text.upper()} once", token=clause)
        parts[part] = period_duration(tokens) if part == "period" else tokens.options()


def subscribe(tokens: TokenStream) -> st.Statement:
    tokens.need("TO")
    channel = tokens.full_name("a channel")
    arguments = tokens.arguments()
    tokens.need("ON")
    return st.SubscribeStatement(channel=channel, arguments=arguments, broker=tokens.full_name("a broker"))


def unsubscribe(tokens: TokenStream) -> st.Statement:
    subscription = tokens.text("a subscription's id in quotes")
    tokens.need("FROM")
    return st.UnsubscribeStatement(subscription=subscription, channel=tokens.full_name("a channel"))


def change_subscription(tokens: TokenStream) -> st.Statement:
    tokens.need("SUBSCRIPTION")
    subscription = tokens.text("a subscription's id in quotes")
    tokens.need("ON")
    channel = tokens.full_name("a channel")
    arguments = tokens.arguments() if tokens.at(TokenType.L_PAREN) else None
    tokens.need("TO")
    broker = tokens.full_name("a broker")
    return st.ChangeSubscription(subscription=subscription, channel=channel, arguments=arguments, broker=broker)
