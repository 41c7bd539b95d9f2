"""Passes arguments to functions of text: a value that is no text becomes NULL, as in SQL++, and a time its text.

Spark would take the digits of a number as text, so that contains(108, "0") is true. Functions that only Spark has, such
as lpad, keep Spark's rule. Spark holds a time of day as a number and a duration as a struct, and a text function would
show these instead of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from tocsin.language.functions.collections import array_functions
from tocsin.language.functions.collections.array_arguments import answer
from tocsin.language.functions.temporal_text import duration_text, time_text
from tocsin.language.types.type_probe import needs_stand_in, opaque, refusal
from tocsin.language.types.typed_sql import TypedSql, string
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


# Functions that take text, and accept numbers as their digits.
_WANTS_TEXT: Final = frozenset(
    (
        "ascii base64 btrim char_length character_length concat concat_ws contains endswith format_string initcap "
        "instr left length levenshtein locate lower lpad ltrim md5 octet_length overlay position printf regexp_count "
        "regexp_extract regexp_extract_all regexp_instr regexp_like regexp_replace regexp_substr repeat replace right "
        "rlike rpad rtrim sha sha1 sha2 split split_part startswith string substr substring substring_index to_string "
        "translate trim upper "
    ).split()
)
# Functions that take any value and would reveal how Spark holds it.
_SHOWS: Final = frozenset("array_join format_string printf string to_csv to_json to_variant_object to_xml".split())
_WRITES: Final = frozenset("format_string printf string".split())


def name_of(made: exp.Expr) -> str:
    """Returns the name of an expression for error messages."""
    match made:
        case exp.Anonymous():
            return str(made.this).lower()
        case exp.Cast():
            return f"CAST AS {made.args['to'].sql(dialect='spark')}"
        case exp.DPipe():
            return "||"
        case exp.Neg():
            return "-"
        case exp.EQ() | exp.NEQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE() | exp.NullSafeEQ() | exp.NullSafeNEQ():
            return "a comparison with another type"
        case exp.Window() | exp.Filter() | exp.WithinGroup() | exp.IgnoreNulls() | exp.RespectNulls():
            return name_of(made.this)
    return made.key.upper()


def with_texts(made: exp.Expr, parts: Sequence[TypedSql]) -> tuple[exp.Expr, list[TypedSql]]:
    """Returns the call with texts in place of times and durations, if the call takes text."""
    name = name_of(made)
    to_text = isinstance(made, exp.Cast) and made.is_type("STRING", "TEXT", "VARCHAR", "CHAR")
    shows = name in _SHOWS or to_text
    if name == "typeof" and len(parts) == 1 and needs_stand_in(parts[0].type):
        return string(str(parts[0].type)), []
    if not (shows or name in _WANTS_TEXT or isinstance(made, exp.DPipe)):
        return made, list(parts)
    texts: dict[exp.Expr, exp.Expr] = {}
    for part in parts:
        if part.type in (t.TIME, t.DURATION) and name not in ("to_json", "to_variant_object"):
            texts[part.sql] = time_text(part.sql) if part.type == t.TIME else duration_text(part.sql)
        elif shows and (hidden := opaque(part.type)) is not None:
            raise refusal("to_string" if name == "string" else name, hidden)
        elif (name in _WRITES or to_text) and part.type != t.ANY and values.contains_any(part.type):
            # Its text would reveal the tags of untyped values.
            texts[part.sql] = values.null(t.STRING)
        elif name == "to_json" and needs_stand_in(part.type):
            texts[part.sql] = encoder.to_any(part)
    if not texts:
        return made, list(parts)
    kind = t.ANY if name == "to_json" else t.STRING
    replaced = [TypedSql(texts[part.sql], kind) if part.sql in texts else part for part in parts]
    return made.transform(lambda node: texts[node].copy() if node in texts else node), replaced
