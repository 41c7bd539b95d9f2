"""Applies SQL++'s rule to the functions of text that it has: a value that is no text gives NULL.

Spark would take the digits of a number as text, so that contains(108, "0") is true. Functions that only Spark has, such
as lpad, keep Spark's rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tocsin.language.functions.collections import array_functions
from tocsin.language.functions.collections.array_arguments import answer
from tocsin.language.types.typed_sql import TypedSql
from tocsin.language.types.variant import encoder, values
from tocsin.language.types.variant.values import VOID
from tocsin.rules.model import types as t
from tocsin.rules.model.types import ArrayType, MultisetType

_ALL: Final = range(1_000)
# Which arguments of a function are texts.
PLACES: Final[dict[str, Sequence[int]]] = {
    **dict.fromkeys("char_length character_length initcap lcase length lower ucase upper".split(), (0,)),
    **dict.fromkeys("repeat substr substring".split(), (0,)),
    **dict.fromkeys("contains endswith position regexp regexp_like replace rlike split startswith".split(), _ALL),
    **dict.fromkeys("btrim ltrim rtrim trim".split(), _ALL),
    "regexp_replace": (0, 1, 2),
    "split": (0, 1),
}


def as_text(value: TypedSql) -> TypedSql:
    """Returns a value as text; SQL NULL if it is no text."""
    if value.type == t.STRING:
        return value
    if value.type == t.ANY:
        return TypedSql(values.exactly(value.sql, t.STRING), t.STRING)
    return TypedSql(values.void_as(value.sql, t.STRING) if value.type == VOID else values.null(t.STRING), t.STRING)


def only_texts(name: str, arguments: Sequence[TypedSql]) -> list[TypedSql]:
    """Returns the arguments of a function, with NULL for each value that is no text where the function takes one."""
    places = PLACES.get(name, ())
    return [as_text(argument) if at in places else argument for at, argument in enumerate(arguments)]


def concat(arguments: Sequence[TypedSql]) -> TypedSql:
    """Joins texts or arrays. Untyped arguments are arrays or texts as the first one is, row by row."""
    if any(isinstance(argument.type, ArrayType | MultisetType) for argument in arguments):
        return array_functions.call_one("array_concat", arguments) if len(arguments) > 1 else arguments[0]
    texts = TypedSql(values.call("concat", *(as_text(argument).sql for argument in arguments)), t.STRING)
    if len(arguments) < 2 or any(argument.type not in (t.ANY, VOID) for argument in arguments):
        return texts
    return _either(array_functions.call_one("array_concat", arguments), texts, arguments)


def reverse(argument: TypedSql) -> TypedSql:
    """Reverses a text or an array."""
    if isinstance(argument.type, ArrayType | MultisetType):
        return array_functions.call_one("array_reverse", [argument])
    text = TypedSql(values.call("reverse", as_text(argument).sql), t.STRING)
    if argument.type != t.ANY:
        return text
    return _either(array_functions.call_one("array_reverse", [argument]), text, [argument])


def _either(array: TypedSql, text: TypedSql, arguments: Sequence[TypedSql]) -> TypedSql:
    made = values.call("coalesce", *(encoder.to_any(TypedSql(found.sql, found.type)) for found in (array, text)))
    return answer(made, t.ANY, arguments)
