"""Binds Python values as variables of a query. A value is data; no part of it is ever parsed as SQL."""

from __future__ import annotations

from typing import Any

from sqlglot import exp

from tocsin.language.types.typed_sql import TypedSql, literal, string
from tocsin.language.types.variant import values
from tocsin.language.types.variant.values import VOID
from tocsin.rules.model import types as t
from tocsin.rules.model.open_form import dumps_value
from tocsin.rules.model.values import MISSING


def bind_value(value: Any) -> TypedSql:
    """Returns the value with its own type; collections and objects are untyped."""
    if value is MISSING:
        return TypedSql(values.null(t.ANY), t.ANY)
    if value is None:
        return TypedSql(exp.null(), VOID)
    if isinstance(value, dict | list):
        return TypedSql(values.call("parse_json", string(dumps_value(value))), t.ANY)
    return literal(value)
