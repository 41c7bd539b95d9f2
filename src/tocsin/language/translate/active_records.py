"""Translates the functions about active datasets: the time of a record's commit, and the times of executions.

Queries and channels share them. Only `is_new`, which depends on a channel's position, is a channel's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from sqlglot import exp

from tocsin.language.translate.expressions import fail
from tocsin.language.translate.interfaces import Dataset
from tocsin.language.translate.scope import RowVariable, column
from tocsin.language.types.typed_sql import TypedSql
from tocsin.language.types.variant import values
from tocsin.rules.model import types as t
from tocsin.rules.model.columns import AT, physical
from tocsin.rules.model.types import Field, ObjectType

if TYPE_CHECKING:
    from tocsin.language.translate.translator import Translator

IMPLIED: Final = "implied"
"""The key in the meta of a call that the channel added itself, because its query has none."""
_ACTIVE_TIMESTAMP: Final = "_active_timestamp"


def check_channel_time(name: str, node: exp.Anonymous, translator: Translator) -> None:
    """Checks the argument of current_channel_time and previous_channel_time. It has no effect: in the original it is
    the record or the channel that the time is meant for."""
    if len(node.expressions) > 1:
        fail(f"{name} takes at most one argument", node, f"{name}(v)")
    for argument in node.expressions:
        translator.expression(argument)


def active_variable(
    name: str, node: exp.Anonymous, translator: Translator, scanned: Mapping[str, Dataset]
) -> tuple[RowVariable, Dataset]:
    """Returns the variable that a call is about, and its dataset, which must be active."""
    argument = node.expressions[0] if len(node.expressions) == 1 else None
    value = translator.expression(argument) if argument is not None else None
    dataset = scanned.get(value.alias) if isinstance(value, RowVariable) else None
    if dataset is None or not isinstance(value, RowVariable):
        fail(f"{name} takes a variable that ranges over a dataset", node, "write it where FROM names the dataset")
    if not dataset.active:
        remedy = "CREATE ACTIVE DATASET"
        if name == "is_new":
            remedy += ", or a REPETITIVE channel, which computes the whole result each period"
        asker = "a continuous channel" if node.meta.get(IMPLIED) else name
        fail(f"{asker} needs an active dataset, and {dataset.name} is not", node, remedy)
    return value, dataset


def active_time(name: str, value: RowVariable) -> TypedSql:
    """Returns the time of the record's commit: `active_timestamp(v)`, or ``meta(v).`_active_timestamp` ``."""
    at = column(value.alias, AT)
    if name == "active_timestamp":
        return TypedSql(at, t.DATETIME)
    type_ = ObjectType((Field(_ACTIVE_TIMESTAMP, t.DATETIME),), open=False)
    return TypedSql(values.record([(physical(_ACTIVE_TIMESTAMP), at)]), type_)
