"""Passes times and durations to Spark's text functions as text, never as the numbers that hold them.

Spark holds a time of day as a number and a duration as a struct, and a text function would show these instead of the
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from tocsin.language.functions.temporal_text import duration_text, time_text
from tocsin.language.types.type_probe import needs_stand_in, opaque, refusal
from tocsin.language.types.typed_sql import TypedSql, string
from tocsin.language.types.variant import encoder, values
from tocsin.rules.model import types as t

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
