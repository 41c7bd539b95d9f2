"""Implements the named temporal functions: constructors from text, parts of a value, and conversions.

The translator checks a literal at once. Spark parses other text, in the extended form of ISO 8601; invalid text fails
the query with a message that says what the function expects. `get_…` returns a bigint; for a duration it returns the
part of the full notation (P1Y2M3DT4H5M6.789S), with the duration's sign.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from sqlglot import exp

from tocsin.language.types import typed_sql
from tocsin.language.types.typed_sql import Overload, TypedSql, as_bigint, build, guard_nulls, struct
from tocsin.rules.model import values
from tocsin.rules.model.types import BIGINT, DATE, DATETIME, DURATION, INTEGER, INTEGERS, STRING, TIME, UUID
from tocsin.rules.model.values import Duration

MICROS_PER_DAY: Final = 86_400_000_000

# ---------------------------------------------------------------- from text


def _parser_sql(pattern: str, expected: str, made: str) -> str:
    return (
        rf"CASE WHEN _s IS NULL THEN NULL WHEN _s RLIKE '^\\s*{pattern}\\s*$' THEN {made}"
        f" ELSE raise_error(concat('expected {expected}, got \"', _s, '\"')) END"
    )


# The text without surrounding blanks. Texts of these patterns have no inner blanks, except one in a datetime.
_BARE: Final = r"regexp_replace(_s, '^\\s+|\\s+$', '')"
_CLOCK: Final = "[0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,9})?)?"
_DAY: Final = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
# Spark cannot parse a zone after minutes without seconds.
_WITH_SECONDS: Final = "regexp_replace({text}, '([T ][0-9]{{2}}:[0-9]{{2}})(Z|[+-].*)?$', '$1:00$2')"
_READ_DATETIME: Final = _parser_sql(
    f"{_DAY}[T ]{_CLOCK}(Z|[+-][0-9]{{2}}(:[0-9]{{2}})?)?", 'a datetime such as "2026-11-15T08:30:00Z"',
    f"CAST({_WITH_SECONDS.format(text=_BARE)} AS TIMESTAMP)",
)  # fmt: skip
_READ_DATE: Final = _parser_sql(_DAY, 'a date such as "2026-11-15"', f"CAST({_BARE} AS DATE)")
_FIRST_DAY: Final = f"concat('1970-01-01T', regexp_replace({_BARE}, 'Z$', ''), 'Z')"
_READ_TIME: Final = _parser_sql(
    f"{_CLOCK}Z?", 'a time of day such as "08:30:00.250"',
    f"unix_micros(CAST({_WITH_SECONDS.format(text=_FIRST_DAY)} AS TIMESTAMP))",
)  # fmt: skip
_HEX: Final = "[0-9A-Fa-f]"
_READ_UUID: Final = _parser_sql(
    rf"{_HEX}{{8}}(-?){_HEX}{{4}}\\1{_HEX}{{4}}\\1{_HEX}{{4}}\\1{_HEX}{{12}}",
    'a uuid such as "5c848e5c-6b6a-498f-8452-8847a2957421"',
    r"regexp_replace(lower(regexp_replace(_s, '[\\s-]', '')),"
    " '^(.{8})(.{4})(.{4})(.{4})(.{12})$', '$1-$2-$3-$4-$5')",
)


def _duration_sql(*, months: bool, micros: bool, expected: str) -> str:
    """Returns SQL that parses a duration.

    Each unit is a group of the pattern; the group is empty if the text, or this kind of duration, lacks the unit. The
    last unit may have a fraction if its length is fixed.
    """

    def units(letters: str, wanted: bool, part: str = "") -> str:
        return "".join(f"(?:(-?[0-9]{{1,18}}){part}{letter})?" if wanted else "()" for letter in letters)

    last = r"(?:[.][0-9]{1,6}(?=[A-Z]\\s*$))?"
    clock = f"(?:T(?=[-0-9]){units('HMS', True, last)})?"
    pattern = f"(-)?P(?=[-0-9T]){units('YM', months)}{units('WD', micros, last)}{clock if micros else '()()()'}"

    def group(place: int) -> str:
        return rf"regexp_extract(_s, '^\\s*{pattern}\\s*$', {place})"

    def count(place: int) -> str:
        return f"CAST(coalesce(nullif({group(place)}, ''), '0') AS BIGINT)"

    sign = f"IF({group(1)} = '-', -1, 1)"
    day = f"({count(4)} * 7 + {count(5)})"
    seconds = f"((({day} * 24 + {count(6)}) * 60 + {count(7)}) * 60 + {count(8)})"
    # Take the sign from the text: "-0.5S" has the integer part 0, which has no sign.
    digits, unit = (rf"regexp_extract(_s, '[.]([0-9]+)([A-Z])\\s*$', {place})" for place in (1, 2))
    length = f"CASE {unit} WHEN 'W' THEN 604800 WHEN 'D' THEN 86400 WHEN 'H' THEN 3600 WHEN 'M' THEN 60 ELSE 1 END"
    fraction = f"IF(_s RLIKE '-[0-9]+[.]', -1, 1) * CAST(rpad({digits}, 6, '0') AS BIGINT) * {length}"
    duration = (
        f"named_struct('months', CAST({sign} * ({count(2)} * 12 + {count(3)}) AS INT),"
        f" 'micros', {sign} * ({seconds} * 1000000 + {fraction}))"
    )
    return _parser_sql(pattern, expected, duration)


_READ_DURATION: Final = _duration_sql(
    months=True, micros=True, expected='an ISO 8601 duration such as "PT10S" or "P1DT2H"'
)
_READ_DAY_TIME: Final = _duration_sql(
    months=False, micros=True, expected='a day-time duration such as "PT10S" or "P1DT2H"'
)
_READ_YEAR_MONTH: Final = _duration_sql(months=True, micros=False, expected='a year-month duration such as "P1Y6M"')


def _parse_day_time(text: str) -> Duration:
    duration = values.parse_duration(text)
    if duration.months:
        raise ValueError(f'expected a day-time duration such as "PT10S" or "P1DT2H", got "{text}"')
    return duration


def _parse_year_month(text: str) -> Duration:
    duration = values.parse_duration(text)
    if duration.micros:
        raise ValueError(f'expected a year-month duration such as "P1Y6M", got "{text}"')
    return duration


# ---------------------------------------------------------------- parts and conversions


def _formula(template: str) -> Callable[..., exp.Expr]:
    return lambda *parts: build(template, **{name: part.sql for name, part in zip(("_a", "_b"), parts, strict=False)})


def _whole(template: str) -> Callable[[TypedSql], exp.Expr]:
    """Builds a template over a bigint `_a`; converts other integers."""
    return lambda n: build(template, _a=as_bigint(n))


def _duration_of(template: str) -> Callable[[TypedSql], exp.Expr]:
    def make(value: TypedSql) -> exp.Expr:
        part = as_bigint(value) if value.type in INTEGERS else value.sql
        return guard_nulls((part,), build(template, _a=part))

    return make


def _of_months(template: str) -> Callable[[TypedSql], exp.Expr]:
    return lambda duration: build(template, _m=typed_sql.field(duration.sql, "months"))


def _of_micros(template: str) -> Callable[[TypedSql], exp.Expr]:
    return lambda duration: build(template, _m=typed_sql.field(duration.sql, "micros"))


def _calendar(part: str) -> Overload:
    # Call by name: sqlglot would add conversions to functions that it knows.
    def make(moment: TypedSql) -> exp.Expr:
        return exp.cast(exp.Anonymous(this=part, expressions=[moment.sql.copy()]), "BIGINT")

    return Overload(((DATE, DATETIME),), BIGINT, make)


def _clock(unit_micros: int, modulus: int) -> list[Overload]:
    """Returns overloads for the same part of a time of day, a datetime and a duration."""
    template = f"(_m DIV {unit_micros} % {modulus})"
    return [
        Overload((TIME,), BIGINT, lambda time: build(template, _m=time.sql)),
        Overload((DATETIME,), BIGINT, lambda moment: build(template, _m=_time_of(moment))),
        Overload((DURATION,), BIGINT, _of_micros(template)),
    ]


def _time_of(moment: TypedSql) -> exp.Expr:
    return build(f"pmod(unix_micros(_a), {MICROS_PER_DAY})", _a=moment.sql)


# Quoted text, or a run of one letter.
_PATTERN_PART: Final = re.compile(r"'[^']*'|([A-Za-z])\1*")


def spark_pattern(pattern: str) -> str:
    """Translates a pattern of AsterixDB, such as `YYYY-MM-DD hh:mm:ss.nnn`, to Spark's letters.

    In Spark, Y is refused, n is unknown, D and DD mean the day of the year, and h needs an `a` for am and pm: none of
    these letters has another meaning in a pattern that Spark takes.
    """
    letters = {found[1] for found in _PATTERN_PART.finditer(pattern) if found[1]}
    changes = {"Y": "y", "n": "S"}
    if "d" not in letters:
        changes["D"] = "d"
    if "a" not in letters and "H" not in letters:
        changes["h"] = "H"

    def translate_letter(part: re.Match[str]) -> str:
        letter = part[1]
        if not letter or letter not in changes or (letter == "D" and len(part[0]) > 2):
            return part[0]
        return changes[letter] * len(part[0])

    return _PATTERN_PART.sub(translate_letter, pattern)


def _with_pattern(name: str) -> Callable[[TypedSql, TypedSql], exp.Expr]:
    # Call by name: sqlglot would translate the format string of functions that it knows.
    def make(value: TypedSql, form: TypedSql) -> exp.Expr:
        constant = typed_sql.constant_string(form.sql)
        pattern = form.sql if constant is None else typed_sql.string(spark_pattern(constant))
        return exp.Anonymous(this=name, expressions=[value.sql.copy(), pattern.copy()])

    return make


def _print_time(time: TypedSql, form: TypedSql) -> exp.Expr:
    moment = TypedSql(build("timestamp_micros(_a)", _a=time.sql), DATETIME)
    return _with_pattern("date_format")(moment, form)


def _parse_time(text: TypedSql, form: TypedSql) -> exp.Expr:
    return _time_of(TypedSql(_with_pattern("to_timestamp")(text, form), DATETIME))


_TIME_OF: Final = [Overload((DATETIME,), TIME, _time_of)]
_DATE_OF: Final = [Overload((DATETIME,), DATE, _formula("CAST(_a AS DATE)"))]
_MIDNIGHT: Final = "unix_micros(CAST(_a AS TIMESTAMP))"
_ZERO_MICROS: Final = typed_sql.integer(0, BIGINT)

_SAME_DURATION: Final = Overload((DURATION,), DURATION, lambda duration: duration.sql)

FUNCTIONS: Final = typed_sql.table({
    "datetime": [Overload((STRING,), DATETIME, typed_sql.from_text(values.parse_datetime, _READ_DATETIME)),
                 Overload((DATE,), DATETIME, _formula("CAST(_a AS TIMESTAMP)")),
                 Overload((DATETIME,), DATETIME, lambda moment: moment.sql)],
    "date": [Overload((STRING,), DATE, typed_sql.from_text(values.parse_date, _READ_DATE)), *_DATE_OF,
             Overload((DATE,), DATE, lambda day: day.sql)],
    "time": [Overload((STRING,), TIME, typed_sql.from_text(values.parse_time, _READ_TIME)), *_TIME_OF,
             Overload((TIME,), TIME, lambda time: time.sql)],
    "duration": [Overload((STRING,), DURATION, typed_sql.from_text(values.parse_duration, _READ_DURATION)),
                 _SAME_DURATION],
    "day_time_duration": [Overload((STRING,), DURATION, typed_sql.from_text(_parse_day_time, _READ_DAY_TIME)),
                          _SAME_DURATION],
    "year_month_duration": [Overload((STRING,), DURATION, typed_sql.from_text(_parse_year_month, _READ_YEAR_MONTH)),
                            _SAME_DURATION],
    "uuid": [Overload((), UUID, lambda: exp.Anonymous(this="uuid")),
             Overload((STRING,), UUID, typed_sql.from_text(values.parse_uuid, _READ_UUID)),
             Overload((UUID,), UUID, lambda uuid: uuid.sql)],
    "get_year": [_calendar("year"), Overload((DURATION,), BIGINT, _of_months("(_m DIV 12)"))],
    "get_month": [_calendar("month"), Overload((DURATION,), BIGINT, _of_months("CAST(_m % 12 AS BIGINT)"))],
    "get_day": [_calendar("day"), Overload((DURATION,), BIGINT, _of_micros(f"(_m DIV {MICROS_PER_DAY})"))],
    "get_hour": _clock(3_600_000_000, 24),
    "get_minute": _clock(60_000_000, 60),
    "get_second": _clock(1_000_000, 60),
    "get_millisecond": _clock(1_000, 1_000),
    # 1 is Monday, 7 is Sunday.
    "day_of_week": [Overload(((DATE, DATETIME),), BIGINT, _formula("CAST(weekday(_a) + 1 AS BIGINT)"))],
    "datetime_from_unix_time_in_ms": [Overload((INTEGERS,), DATETIME, _whole("timestamp_millis(_a)"))],
    "datetime_from_unix_time_in_secs": [Overload((INTEGERS,), DATETIME, _whole("timestamp_seconds(_a)"))],
    "date_from_unix_time_in_days": [Overload((INTEGERS,), DATE, _whole("date_from_unix_date(CAST(_a AS INT))"))],
    "time_from_unix_time_in_ms": [Overload((INTEGERS,), TIME, _whole(f"pmod(_a * 1000, {MICROS_PER_DAY})"))],
    "unix_time_from_datetime_in_ms": [Overload((DATETIME,), BIGINT, _formula("unix_millis(_a)"))],
    "unix_time_from_datetime_in_secs": [Overload((DATETIME,), BIGINT, _formula("unix_seconds(_a)"))],
    "unix_time_from_date_in_days": [Overload((DATE,), BIGINT, _formula("CAST(unix_date(_a) AS BIGINT)"))],
    "unix_time_from_time_in_ms": [Overload((TIME,), BIGINT, _formula("(_a DIV 1000)"))],
    "datetime_from_date_time": [Overload((DATE, TIME), DATETIME, _formula(f"timestamp_micros({_MIDNIGHT} + _b)"))],
    "date_from_datetime": _DATE_OF,
    "get_date_from_datetime": _DATE_OF,
    "time_from_datetime": _TIME_OF,
    "get_time_from_datetime": _TIME_OF,
    "duration_from_ms": [Overload((INTEGERS,), DURATION, _duration_of(
        "named_struct('months', CAST(0 AS INT), 'micros', _a * 1000)"))],
    "duration_from_months": [Overload((INTEGERS,), DURATION, _duration_of(
        "named_struct('months', CAST(_a AS INT), 'micros', CAST(0 AS BIGINT))"))],
    # These return one part; a duration may have both parts.
    "get_day_time_duration": [Overload((DURATION,), DURATION, lambda d: guard_nulls((d.sql,), struct(
        months=typed_sql.integer(0, INTEGER), micros=typed_sql.field(d.sql, "micros"))))],
    "get_year_month_duration": [Overload((DURATION,), DURATION, lambda d: guard_nulls((d.sql,), struct(
        months=typed_sql.field(d.sql, "months"), micros=_ZERO_MICROS)))],
    "ms_from_day_time_duration": [Overload((DURATION,), BIGINT, _of_micros("(_m DIV 1000)"))],
    "months_from_year_month_duration": [Overload((DURATION,), BIGINT, _of_months("CAST(_m AS BIGINT)"))],
    # Formats are patterns of Spark or of the original.
    "parse_datetime": [Overload((STRING, STRING), DATETIME, _with_pattern("to_timestamp"))],
    "print_datetime": [Overload((DATETIME, STRING), STRING, _with_pattern("date_format"))],
    "parse_date": [Overload((STRING, STRING), DATE, _with_pattern("to_date"))],
    "print_date": [Overload(((DATE, DATETIME), STRING), STRING, _with_pattern("date_format"))],
    "parse_time": [Overload((STRING, STRING), TIME, _parse_time)],
    "print_time": [Overload((TIME, STRING), STRING, _print_time)],
})  # fmt: skip
