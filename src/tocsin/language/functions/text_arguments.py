"""Passes times and durations to Spark's text functions as text, never as the numbers that hold them.

Spark holds a time of day as a number and a duration as a struct, and a text function would show these instead of the
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from tocsin.language.types.type_probe import needs_stand_in, opaque, refusal
from tocsin.language.types.typed_sql import TypedSql, build, guard_nulls, string
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
        elif name == "to_json" and needs_stand_in(part.type):
            texts[part.sql] = encoder.to_any(part)
    if not texts:
        return made, list(parts)
    kind = t.ANY if name == "to_json" else t.STRING
    replaced = [TypedSql(texts[part.sql], kind) if part.sql in texts else part for part in parts]
    return made.transform(lambda node: texts[node].copy() if node in texts else node), replaced


def time_text(sql: exp.Expr) -> exp.Expr:
    form = "if(_v % 1000000 = 0, 'HH:mm:ss', 'HH:mm:ss.SSSSSS')"
    return build(f"date_format(timestamp_micros(_v), {form})", _v=sql)


def duration_text(sql: exp.Expr) -> exp.Expr:
    """Formats a duration. A common sign comes first; if the signs differ, each unit of the negative part has a sign."""
    months, micros = build("abs(_v.months)", _v=sql), build("abs(_v.micros)", _v=sql)
    month_sign = build("if(_v.months < 0 AND _v.micros > 0, '-', '')", _v=sql)
    micro_sign = build("if(_v.micros < 0 AND _v.months > 0, '-', '')", _v=sql)

    def unit(count: str, letter: str, of: exp.Expr, sign: exp.Expr) -> exp.Expr:
        return build(f"if({count} > 0, concat(_sign, {count}, '{letter}'), '')", _n=of, _sign=sign)

    fraction = "if(_n % 1000000 = 0, '', concat('.', regexp_replace(lpad(string(_n % 1000000), 6, '0'), '0+$', '')))"
    seconds = build(
        "if(_n % 60000000 > 0, concat(_sign, (_n % 60000000) DIV 1000000, _fraction, 'S'), '')",
        _n=micros, _sign=micro_sign, _fraction=build(fraction, _n=micros),
    )  # fmt: skip
    day = values.call(
        "concat",
        unit("_n DIV 12", "Y", months, month_sign),
        unit("_n % 12", "M", months, month_sign),
        unit("_n DIV 86400000000", "D", micros, micro_sign),
    )
    clock = values.call(
        "concat",
        unit("(_n % 86400000000) DIV 3600000000", "H", micros, micro_sign),
        unit("(_n % 3600000000) DIV 60000000", "M", micros, micro_sign),
        seconds,
    )
    text = build(
        "if(_v.months = 0 AND _v.micros = 0, 'PT0S',"
        " concat(if(_v.months <= 0 AND _v.micros <= 0, '-P', 'P'), _day, if(_clock = '', '', concat('T', _clock))))",
        _v=sql, _day=day, _clock=clock,
    )  # fmt: skip
    return guard_nulls((sql,), text)
