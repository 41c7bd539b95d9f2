"""Translates the rows that Spark itself makes in FROM: VALUES and table functions.

Only functions of an allow list may be called. Their arguments are constants, because Spark's analyser is asked for
their columns before the rest of the query is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from tocsin.language.functions import function_registry
from tocsin.language.translate.expressions import fail
from tocsin.language.translate.scope import Relation
from tocsin.language.translate.spark_text import render_for_analysis
from tocsin.rules.model.columns import physical
from tocsin.rules.model.types import Field, ObjectType

if TYPE_CHECKING:
    from tocsin.language.translate.translator import Translator


def translate_spark_rows(node: exp.Expr, called: exp.Expr, translator: Translator) -> tuple[Relation, str]:
    """Translates VALUES, range(…) and other table functions of Spark; returns the rows and the name of their variable.
    Spark's analyser returns their columns."""
    alias_node = node.args.get("alias")
    name = alias_node.name if alias_node is not None and alias_node.name else translator.alias("rows")
    rows_sql: exp.Expr
    if isinstance(called, exp.Anonymous):
        function = called.name.lower()
        if function not in function_registry.TABLE_FUNCTIONS:
            remedy = function_registry.suggest_function(function, function_registry.TABLE_FUNCTIONS)
            allowed = ", ".join(sorted(function_registry.TABLE_FUNCTIONS))
            fail(f"{called.name[:60]} cannot be called in FROM", called, f"yours, or one of {allowed}; {remedy}")
        rows_sql = exp.Anonymous(
            this=function, expressions=[_constant(argument, translator) for argument in called.expressions]
        )
    else:
        rows = (item.expressions if isinstance(item, exp.Tuple) else [item] for item in called.expressions)
        rows_sql = exp.Values(
            expressions=[exp.Tuple(expressions=[_constant(value, translator) for value in row]) for row in rows]
        )
    columns = alias_node.args.get("columns") if alias_node is not None else None
    names = exp.TableAlias(
        this=exp.to_identifier(name, quoted=True),
        columns=[exp.to_identifier(column_.name, quoted=True) for column_ in columns or []] or None,
    )
    source = rows_sql if isinstance(rows_sql, exp.Values) else exp.Table(this=rows_sql)
    source.set("alias", names)
    analysed = translator.type_analyser.columns(render_for_analysis(exp.select("*").from_(source.copy())))
    type_ = ObjectType(tuple(Field(name_, kind) for name_, kind in analysed), open=False)
    if any(physical(name_) != name_ for name_, _ in analysed):
        fail("name the columns of this source", node, f"… AS {name}(a, b)")
    query = exp.select(*(exp.column(name_, quoted=True) for name_, _ in analysed)).from_(source)
    return Relation(query, type_, False), name


def _constant(node: exp.Expr, translator: Translator) -> exp.Expr:
    value = translator.expression(node)
    if value.sql.find(exp.Column):
        fail("a table function of Spark takes constants here", node, "use UNNEST for arrays of a row")
    # A plain number stays an INT, which some of these functions require.
    inner = node.this if isinstance(node, exp.Neg) else node
    return node.copy() if isinstance(inner, exp.Literal) and not inner.is_string else value.sql
