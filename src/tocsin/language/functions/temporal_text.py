"""Writes times and durations as text.

Spark holds a time of day as a number and a duration as a struct, so it cannot write them itself.
"""

from __future__ import annotations

from sqlglot import exp

from tocsin.language.types.typed_sql import build, guard_nulls
from tocsin.language.types.variant import values


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
