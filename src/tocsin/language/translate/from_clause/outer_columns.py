"""Gives a subquery the columns of outer queries that it refers to.

They are imported level by level, because Spark correlates over one level only. Untyped columns pass as text, because
Spark's subqueries cannot refer to variants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlglot import exp

from tocsin.language.translate.from_clause.dataset_scan import table_alias
from tocsin.language.translate.scope import VALUE, QueryBlock, column, free_tables
from tocsin.language.types.typed_sql import TypedSql
from tocsin.language.types.variant import encoder, values


def import_outer_columns(query: Any, block: QueryBlock, alias: Callable[[str], str]) -> Any:
    """Replaces every reference to an outer block by a column that `block` imports."""
    foreign = free_tables(query) - block.aliases - {block.import_alias}
    if not foreign:
        return query
    name = block.import_alias or alias("outer")
    for reference in list(query.find_all(exp.Column)):
        if reference.table in foreign:
            replacement = block.import_column(reference, name)
            if reference is query:
                return replacement
            reference.replace(replacement)
    return query


def pass_untyped_columns(query: Any, block: QueryBlock, alias: Callable[[str], str]) -> Any:
    """Replaces every reference to an untyped column of `block` by its text: Spark's subqueries refer to no variants.

    A generator makes the text, because it is the only kind of LATERAL that may read a variant.
    """
    for reference in list(query.find_all(exp.Column)):
        key = (reference.table, reference.name)
        type_ = block.untyped_columns.get(key)
        if type_ is None:
            continue
        if key not in block.texts:
            block.texts[key] = alias("text")
            value = TypedSql(column(*key), type_)
            text = values.call("explode", values.call("array", encoder.to_stored(value)))
            names = table_alias(block.texts[key])
            names.set("columns", [exp.to_identifier(VALUE, quoted=True)])
            block.joins.append(exp.Join(this=exp.Lateral(this=text, alias=names), kind="CROSS"))
            block.aliases.add(block.texts[key])
        reference.replace(encoder.from_stored(column(block.texts[key], VALUE), type_))
    return query
