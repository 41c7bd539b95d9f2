"""Translates the scan of a dataset: its view, its untyped fields and the version of AS OF.

Datasets store fields of type `any` as text. A scan reads them as variants, so that the rest of a query knows of values
only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlglot import exp

from tocsin.language.translate.expressions import fail
from tocsin.language.types.variant import encoder, values
from tocsin.rules.model.columns import OPEN, keeps_open, physical
from tocsin.rules.model.types import ObjectType
from tocsin.rules.model.values import parse_datetime


def scan(name: str, type_: ObjectType, alias: str, extra: Sequence[str] = ()) -> exp.Expr:
    """Returns a scan of a dataset's view. Declared fields of type `any` are stored as text and read as variants.

    `extra` names further columns to read.
    """
    view = exp.Table(this=exp.to_identifier(name, quoted=True))
    if not values.contains_any(type_):
        view.set("alias", table_alias(alias))
        return view
    columns = [
        (physical(field.name), encoder.from_stored(exp.column(physical(field.name), quoted=True), field.type))
        for field in type_.fields
    ]
    if keeps_open(type_):
        columns.append((OPEN, exp.column(OPEN, quoted=True)))
    columns += [(name, exp.column(name, quoted=True)) for name in extra]
    query = exp.Select(expressions=[exp.alias_(sql, name, quoted=True) for name, sql in columns]).from_(view)
    return exp.Subquery(this=query, alias=table_alias(alias))


def version_of(node: exp.Table) -> tuple[int | None, Any]:  # noqa: RET503 (fail does not return)
    """Returns the commit number or the instant of AS OF; (None, None) without it."""
    version = node.args.get("version")
    if version is None:
        return None, None
    value = version.expression
    if str(version.this).upper() == "VERSION":
        if isinstance(value, exp.Literal) and not value.is_string and value.this.isdigit():
            return int(value.this), None
        fail("VERSION AS OF needs the number of a commit", version)
    while isinstance(value, exp.Anonymous | exp.Cast | exp.Paren):
        value = value.expressions[0] if isinstance(value, exp.Anonymous) and value.expressions else value.this
    if isinstance(value, exp.Literal) and value.is_string:
        try:
            return None, parse_datetime(value.this)
        except ValueError as error:
            fail(str(error), version)
    fail('TIMESTAMP AS OF needs a datetime such as "2026-11-15T08:30:00Z"', version)


def table_alias(alias: str) -> exp.TableAlias:
    return exp.TableAlias(this=exp.to_identifier(alias, quoted=True))
