"""Temporal functions and literals as Spark computes them, beside plain Python."""

from __future__ import annotations

import math
import operator
import struct
import uuid
from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from random import Random
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from sqlglot import exp

from tests.support.reference import moments as reference
from tests.support.reference.asking import ask, ask_one
from tocsin.language.functions import temporal
from tocsin.language.functions.temporal_functions import FUNCTIONS, spark_pattern
from tocsin.language.types.typed_sql import SPARK_TYPES, FunctionError, TypedSql, literal
from tocsin.rules.model import types as t
from tocsin.rules.model import values
from tocsin.rules.model.values import Circle, Duration, Point, Polygon, Rectangle

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def call(name: str, *arguments: TypedSql) -> TypedSql:
    return FUNCTIONS[name](arguments)


def column(name: str, type_: t.Type) -> TypedSql:
    return TypedSql(exp.column(name), type_)


def computed(value: Any) -> TypedSql:
    """The value as something other than a literal."""
    known = literal(value)
    return TypedSql(exp.Anonymous(this="coalesce", expressions=[known.sql, known.sql.copy()]), known.type)


def array(items: Iterable[TypedSql]) -> TypedSql:
    """Many values as one column, which Spark plans sooner."""
    return TypedSql(exp.Array(expressions=[item.sql for item in items]), t.ANY)


def compute(op: str, left: TypedSql, right: TypedSql) -> TypedSql:
    answer = temporal.arithmetic(op, left, right)
    assert answer is not None
    return answer


def as_spark(value: Any) -> Any:
    """A value of ours as Spark hands it to Python."""
    match value:
        case datetime():
            return value.astimezone(UTC).replace(tzinfo=None)
        case time():
            return reference.micros_of(value)
        case Duration():
            return (value.months, value.micros)
        case uuid.UUID():
            return str(value)
    return value


def random_datetime(rng: Random) -> datetime:
    return datetime(1900, 1, 1, tzinfo=UTC) + timedelta(microseconds=rng.randrange(200 * 366 * reference.DAY_US))


def random_duration(rng: Random) -> Duration:
    months = rng.choice([0, 0, 1, 11, 12, rng.randint(-600, 600)])
    micros = rng.choice([0, reference.DAY_US * rng.randint(-40, 40), rng.randint(-(10**14), 10**14)])
    return Duration(months, micros)


# ---------------------------------------------------------------- literals

HOSTILE = [
    "", "plain", "it's", "''", "\\", "\\'", "\\\\", "'; DROP TABLE x; --", "line\nbreak\r\n\ttab", "\\n", "\\u0041",
    "\\x41", "\\101", "\x00", "\x0012", "a\x0bb\x1bc\x7f", "%\\%_\\_", "é ß 漢字 🜂 \u2028\u2029\ufeff",
    "${spark.app.name}", "$", "{x}", "${env:HOME}", "$${spark.app.name}", ":name ?", "/* c */ -- d", '"double"',
    "`tick`", "{{ jinja }}", "\\${spark.master}", "tail\\", "x" * 5000, "\x85\u00a0", "r'raw'", "\ue000\U0010ffff",
]  # fmt: skip


def test_every_string_goes_through_a_literal_unchanged(spark: SparkSession) -> None:
    rng = Random(1)
    alphabet = "'\"\\`${}%_nrtux0123\n\r\t\x00\x01 aé🜂:;-/*"
    texts = HOSTILE + ["".join(rng.choices(alphabet, k=rng.randint(1, 12))) for _ in range(300)]
    (answer,) = ask_one(spark, [array(literal(text) for text in texts)])
    assert answer == texts


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(FunctionError, match="surrogate"):
        literal("\ud800")


def test_every_double_keeps_its_bits(spark: SparkSession) -> None:
    rng = Random(2)
    doubles = [0.0, -0.0, 0.1, -1.5, 1e16, 1e22, 5e-324, -2.2250738585072014e-308, 1.7976931348623157e308]
    doubles += [math.inf, -math.inf]
    while len(doubles) < 200:
        (found,) = struct.unpack("d", rng.randbytes(8))
        if math.isfinite(found):
            doubles.append(found)
    (answers,) = ask_one(spark, [array(literal(value) for value in [*doubles, math.nan])])
    assert [struct.pack("d", value) for value in answers[:-1]] == [struct.pack("d", value) for value in doubles]
    assert math.isnan(answers[-1])


def test_other_literals_keep_their_value_and_their_type(spark: SparkSession) -> None:
    some = uuid.UUID("5c848e5c-6b6a-498f-8452-8847a2957421")
    cases: list[tuple[TypedSql, Any, str]] = [
        (literal(True), True, "boolean"),
        (literal(False), False, "boolean"),
        (literal(7), 7, "bigint"),
        (literal(2**63 - 1), 2**63 - 1, "bigint"),
        (literal(-(2**63)), -(2**63), "bigint"),
        (literal(-128, t.TINYINT), -128, "tinyint"),
        (literal(-5, t.SMALLINT), -5, "smallint"),
        (literal(5, t.INTEGER), 5, "int"),
        (literal(5, t.DOUBLE), 5.0, "double"),
        (literal(0.5, t.FLOAT), 0.5, "float"),
        (literal(None), None, "void"),
        (literal(None, t.POINT), None, "struct<x:double,y:double>"),
        (literal(None, t.ArrayType(t.POINT)), None, "array<struct<x:double,y:double>>"),
        (literal(date(1, 1, 1)), date(1, 1, 1), "date"),
        (literal(date(9999, 12, 31)), date(9999, 12, 31), "date"),
        (literal(datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=UTC)), datetime(1, 1, 1, 0, 0, 0, 1), "timestamp"),
        (literal(datetime(9999, 12, 31, 23, 59, 59, 999999)), datetime(9999, 12, 31, 23, 59, 59, 999999), "timestamp"),
        (literal(time(23, 59, 59, 999999)), 86_399_999_999, "bigint"),
        (literal(Duration(-3, 5)), (-3, 5), "struct<months:int,micros:bigint>"),
        (literal(some), str(some), "string"),
        (literal(Point(1, -2.5)), (1.0, -2.5), "struct<x:double,y:double>"),
        (literal(Rectangle(Point(1, 2), Point(3, 4))), (1.0, 2.0, 3.0, 4.0),
         "struct<x1:double,y1:double,x2:double,y2:double>"),
        (literal(Circle(Point(1, 2), 3)), (1.0, 2.0, 3.0), "struct<x:double,y:double,radius:double>"),
        (literal(Polygon((Point(0, 0), Point(1, 0), Point(0, 1)))), [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)],
         "array<struct<x:double,y:double>>"),
    ]  # fmt: skip
    types = [TypedSql(exp.Anonymous(this="typeof", expressions=[typed.sql.copy()]), t.STRING) for typed, _, _ in cases]
    answers = ask_one(spark, [typed for typed, _, _ in cases] + types)
    assert answers == [value for _, value, _ in cases] + [name for _, _, name in cases]


@pytest.mark.parametrize("value", [{"a": 1}, [1], values.MISSING, 2**63, object()])
def test_what_sql_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(FunctionError, match="expected"):
        literal(value)


# ---------------------------------------------------------------- constructors

TEXTS = {
    "datetime": ["2026-11-15T08:30:00Z", "2026-11-15 08:30:00", " 2026-11-15T08:30", "2026-11-15 08:30+02:00",
                 "2026-01-01T00:00:00.123456+05:30",
                 "1969-12-31T23:59:59.5-01:00", "2024-02-29T12:00:00.1Z", "0001-01-01T00:00:00Z"],
    "date": ["2026-11-15", " 2024-02-29 ", "0001-01-01", "9999-12-31"],
    "time": ["08:30:00", "08:30", "23:59:59.999999", "00:00:00.25Z", " 01:02:03 "],
    "duration": ["PT10S", "P1DT2H", "P1Y2M3W4DT5H6M7.89S", "-P1Y", "-PT0.000001S", "P400D", " PT1M ",
                 "P1M-1DT-0.5S", "-P-1Y2D", "PT-1H30M", "PT1.5H", "P-0.5D ", "-P1MT0.25M", "P1.5W"],
    "day_time_duration": ["PT10S", "-P3DT4H", "P2W"],
    "year_month_duration": ["P1Y6M", "-P13M"],
    "uuid": ["5c848e5c-6b6a-498f-8452-8847a2957421", "5C848E5C-6B6A-498F-8452-8847A2957421",
             " 5c848e5c6b6a498f84528847a2957421 "],
}  # fmt: skip
PARSE = {"datetime": values.parse_datetime, "date": values.parse_date, "time": values.parse_time,
         "uuid": values.parse_uuid}  # fmt: skip


def test_text_is_read_the_same_as_a_literal_and_by_spark(spark: SparkSession) -> None:
    cases = [(name, text) for name, texts in TEXTS.items() for text in texts]
    expected = [as_spark(PARSE.get(name, values.parse_duration)(text)) for name, text in cases]
    asked = [call(name, make(text)) for make in (literal, computed) for name, text in cases]
    assert ask_one(spark, asked) == expected + expected


BAD = [
    ("datetime", "2026-11-15"), ("datetime", "yesterday"), ("date", "15.11.2026"), ("time", "8 o'clock"),
    ("duration", "10 seconds"), ("duration", "P"), ("duration", "PT"), ("duration", "P1DT"),
    ("duration", "PT1.1234567S"), ("duration", "PT1.5H1M"),
    ("day_time_duration", "P1M"), ("year_month_duration", "PT1S"), ("uuid", "5c848e5c"),
    ("uuid", "5c848e5c-6b6a498f84528847a2957421"),
]  # fmt: skip


def test_bad_text_is_refused_now_when_literal_and_by_the_query_otherwise(spark: SparkSession) -> None:
    for name, text in BAD:
        with pytest.raises(FunctionError, match="expected a"):
            call(name, literal(text))
        with pytest.raises(PySparkException, match="expected a"):
            ask_one(spark, [call(name, computed(text))])


def test_days_that_do_not_exist_are_refused_too(spark: SparkSession) -> None:
    for name, text in (("date", "2026-02-30"), ("datetime", "2026-02-30T00:00:00Z"), ("time", "24:01:00")):
        with pytest.raises(FunctionError):
            call(name, literal(text))
        with pytest.raises(PySparkException, match=r"(?i)cast"):
            ask_one(spark, [call(name, computed(text))])


def test_uuid_without_arguments_is_random(spark: SparkSession) -> None:
    first, second = ask_one(spark, [call("uuid"), call("uuid")])
    assert uuid.UUID(first).version == uuid.UUID(second).version == 4
    assert first != second


# ---------------------------------------------------------------- arithmetic and order


def test_arithmetic_agrees_with_the_calendar(spark: SparkSession) -> None:
    rng = Random(4)
    rows = []
    for _ in range(200):
        moments = [random_datetime(rng) for _ in range(2)]
        if rng.random() < 0.3:
            moments[0] = moments[0].replace(month=rng.choice([1, 3, 8]), day=31)
        durations = [random_duration(rng) for _ in range(2)]
        clocks = [random_datetime(rng).time() for _ in range(2)]
        rows.append((*moments, moments[0].date(), moments[1].date(), *clocks, *durations, rng.randint(-9, 9)))
    kinds = [t.DATETIME, t.DATETIME, t.DATE, t.DATE, t.TIME, t.TIME, t.DURATION, t.DURATION, t.BIGINT]
    names = ["m", "n", "d", "e", "t", "u", "x", "y", "k"]
    schema = ", ".join(f"{name} {SPARK_TYPES[kind]}" for name, kind in zip(names, kinds, strict=True))
    # Through microseconds: what a naive datetime means depends on where Python runs.
    columns = [
        tuple((v - EPOCH) // timedelta(microseconds=1) if isinstance(v, datetime) else as_spark(v) for v in row)
        for row in rows
    ]
    spark.createDataFrame(columns, schema.replace("TIMESTAMP", "BIGINT")).createOrReplaceTempView("raw_moments")
    source = "(SELECT * EXCEPT (m, n), timestamp_micros(m) AS m, timestamp_micros(n) AS n FROM raw_moments)"
    m, n, d, e, u, v, x, y, k = (column(name, kind) for name, kind in zip(names, kinds, strict=True))
    no_months = call("get_day_time_duration", x)
    asked = [compute("+", m, x), compute("-", m, x), compute("+", x, m), compute("+", d, x), compute("-", d, x),
             compute("+", u, no_months), compute("-", u, no_months), compute("-", m, n), compute("-", d, e),
             compute("-", u, v), compute("+", x, y), compute("-", x, y), compute("*", x, k), compute("*", k, x),
             compute("-", m, d)]  # fmt: skip
    negated = temporal.negate(x)
    assert negated is not None
    asked.append(negated)
    comparisons = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq,
                   "!=": operator.ne}  # fmt: skip
    for op in comparisons:
        compared = temporal.comparison(op, x, y)
        assert compared is not None
        asked.append(compared)
    for (m0, n0, d0, e0, u0, v0, x0, y0, k0), answers in zip(rows, ask(spark, asked, source), strict=True):
        apart = [m0 - n0, d0 - e0, m0 - datetime.combine(d0, time(), UTC)]
        whole, days, since_midnight = (Duration(0, delta // timedelta(microseconds=1)) for delta in apart)
        clock = reference.micros_of(u0)
        expected = [
            reference.add(m0, x0), reference.add(m0, x0, -1), reference.add(m0, x0),
            reference.add_to_date(d0, x0), reference.add_to_date(d0, x0, -1),
            (clock + x0.micros) % reference.DAY_US, (clock - x0.micros) % reference.DAY_US, whole, days,
            Duration(0, clock - reference.micros_of(v0)), Duration(x0.months + y0.months, x0.micros + y0.micros),
            Duration(x0.months - y0.months, x0.micros - y0.micros), *[Duration(x0.months * k0, x0.micros * k0)] * 2,
            since_midnight, Duration(-x0.months, -x0.micros),
            *(compare(reference.order(x0), reference.order(y0)) for compare in comparisons.values()),
        ]  # fmt: skip
        assert answers == [as_spark(value) for value in expected], (m0, n0, d0, e0, u0, v0, x0, y0, k0)


def test_literal_durations_give_the_same_and_leave_out_what_is_zero(spark: SparkSession) -> None:
    moment, day, clock = datetime(2024, 1, 31, 12, tzinfo=UTC), date(2024, 1, 31), time(23, 30)
    durations = [Duration(1, 0), Duration(0, 1), Duration(-13, -(10**12)), Duration(), Duration(0, 864 * 10**9)]
    asked = [compute(op, literal(value), literal(d)) for value in (moment, day) for op in "+-" for d in durations]
    expected = [add(value, d, sign) for value, add in ((moment, reference.add), (day, reference.add_to_date))
                for sign in (1, -1) for d in durations]  # fmt: skip
    asked.append(compute("+", literal(clock), literal(Duration(0, 3_600_000_000))))
    assert ask_one(spark, asked) == [as_spark(value) for value in expected] + [1_800_000_000]
    seconds = compute("-", column("at", t.DATETIME), literal(values.parse_duration("PT10S"))).sql.sql(dialect="spark")
    assert seconds == "TIMESTAMP_MICROS(UNIX_MICROS(at) - CAST(10000000 AS BIGINT))"


def test_every_two_durations_have_one_order(spark: SparkSession) -> None:
    month_us = 30 * reference.DAY_US
    extremes = [Duration(2**31 - 1, 2**63 - 1), Duration(-(2**31), -(2**63)), Duration(1, 0), Duration(0, month_us),
                Duration(0, -1), Duration(0, 0), Duration(1, -month_us)]  # fmt: skip
    rows = [as_spark(duration) for duration in extremes]
    spark.createDataFrame(rows, "months INT, micros BIGINT").createOrReplaceTempView("durations")
    key = temporal.order_key(TypedSql(exp.column("d"), t.DURATION))
    assert key is not None
    query = f"SELECT d FROM (SELECT struct(months, micros) AS d FROM durations) ORDER BY {key.sql(dialect='spark')}"
    assert [tuple(row.d) for row in spark.sql(query).collect()] == [
        as_spark(d) for d in sorted(extremes, key=reference.order)
    ]


def test_what_has_no_meaning_is_refused_with_what_has() -> None:
    day, clock, length = literal(date(2026, 1, 1)), literal(time(1)), literal(Duration(1, 0))
    with pytest.raises(FunctionError, match=r"cannot compute date \+ date; possible are date \+ duration"):
        temporal.add(day, day)
    with pytest.raises(FunctionError, match="without months"):
        temporal.add(clock, length)
    with pytest.raises(FunctionError, match="cannot compute -date"):
        temporal.negate(day)
    with pytest.raises(FunctionError, match="cannot compare time < bigint"):
        temporal.comparison("<", clock, literal(5))
    assert temporal.add(literal(1), literal(2)) is None
    assert temporal.negate(literal(1)) is None
    assert temporal.comparison("<", day, literal(datetime(2026, 1, 1))) is None
    assert temporal.subtract(day, length) is not None


def test_months_on_a_time_of_day_fail_the_query_when_only_the_data_know(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="without months"):
        ask_one(spark, [compute("+", literal(time(1)), computed(Duration(1, 0)))])


# ---------------------------------------------------------------- parts and conversions


def test_parts_of_values_are_those_python_sees(spark: SparkSession) -> None:
    rng = Random(6)
    names = ["year", "month", "day", "hour", "minute", "second", "millisecond"]
    asked, expected = [], []
    for _ in range(8):
        moment, duration = random_datetime(rng), random_duration(rng)
        seen = {name: getattr(moment, name, moment.microsecond // 1000) for name in names}
        for name in names:
            of = [moment, moment.date()] if name in names[:3] else [moment, moment.time()]
            asked += [call(f"get_{name}", literal(value)) for value in (*of, duration)]
            expected += [seen[name], seen[name], reference.parts(duration)[name]]
        asked.append(call("day_of_week", literal(moment)))
        expected.append(moment.isoweekday())
    assert ask_one(spark, asked) == expected


def test_conversions_answer_as_plain_python(spark: SparkSession) -> None:
    moment = datetime(1969, 7, 20, 20, 17, 40, 123456, tzinfo=UTC)
    micros = (moment - EPOCH) // timedelta(microseconds=1)
    mixed = literal(Duration(14, -1_234_567))
    cases: list[tuple[TypedSql, Any]] = [
        (call("datetime_from_unix_time_in_ms", literal(-1)), EPOCH - timedelta(milliseconds=1)),
        (call("datetime_from_unix_time_in_secs", literal(5, t.INTEGER)), EPOCH + timedelta(seconds=5)),
        (call("date_from_unix_time_in_days", literal(-1)), date(1969, 12, 31)),
        (call("time_from_unix_time_in_ms", literal(3_600_000)), time(1)),
        (call("unix_time_from_datetime_in_ms", literal(moment)), micros // 1000),
        (call("unix_time_from_datetime_in_secs", literal(moment)), micros // 1_000_000),
        (call("unix_time_from_date_in_days", literal(date(1970, 1, 11))), 10),
        (call("unix_time_from_time_in_ms", literal(time(0, 0, 1, 999))), 1000),
        (call("datetime_from_date_time", literal(moment.date()), literal(moment.time())), moment),
        (call("date_from_datetime", literal(moment)), moment.date()),
        (call("get_date_from_datetime", literal(moment)), moment.date()),
        (call("get_time_from_datetime", literal(moment)), moment.time()),
        (call("date", literal(moment)), moment.date()),
        (call("datetime", literal(moment.date())), datetime(1969, 7, 20, tzinfo=UTC)),
        (call("duration_from_ms", literal(1500)), Duration(0, 1_500_000)),
        (call("duration_from_months", literal(-7)), Duration(-7, 0)),
        (call("get_year_month_duration", mixed), Duration(14, 0)),
        (call("get_day_time_duration", mixed), Duration(0, -1_234_567)),
        (call("ms_from_day_time_duration", mixed), -1234),
        (call("months_from_year_month_duration", mixed), 14),
        (call("parse_datetime", literal("20.07.1969 20h17"), literal("dd.MM.yyyy HH'h'mm")),
         datetime(1969, 7, 20, 20, 17, tzinfo=UTC)),
        (call("print_datetime", literal(moment), literal("yyyy/MM/dd HH:mm:ss.SSSSSS")), "1969/07/20 20:17:40.123456"),
        (call("parse_date", literal("20.07.1969"), literal("dd.MM.yyyy")), moment.date()),
        (call("print_date", literal(moment.date()), literal("EEE d MMM")), "Sun 20 Jul"),
        (call("parse_time", literal("20h17"), literal("HH'h'mm")), time(20, 17)),
        (call("print_time", literal(moment.time()), literal("HH:mm")), "20:17"),
    ]  # fmt: skip
    assert ask_one(spark, [typed for typed, _ in cases]) == [as_spark(value) for _, value in cases]


def test_null_in_gives_null_out(spark: SparkSession) -> None:
    kinds = {"s": t.STRING, "m": t.DATETIME, "d": t.DATE, "u": t.TIME, "x": t.DURATION, "k": t.BIGINT}
    no = {name: literal(None, kind) for name, kind in kinds.items()}
    some = literal(Duration(1, 1))
    compared = [temporal.comparison(op, no["x"], some) for op in ("<", "=")]
    asked = [
        *(call(name, no["s"]) for name in TEXTS),
        *(call("get_hour", no[k]) for k in "mux"), *(call("get_year", no[k]) for k in "mdx"),
        call("duration_from_ms", no["k"]), call("get_day_time_duration", no["x"]), call("get_month", literal(None)),
        call("datetime_from_date_time", no["d"], literal(time(1))), call("print_datetime", no["m"], literal("yyyy")),
        compute("+", no["m"], some), compute("+", literal(datetime(2026, 1, 1)), no["x"]),
        compute("-", no["m"], no["m"]),
        compute("+", no["x"], some), compute("*", some, no["k"]), compute("+", literal(time(1)), no["x"]),
        compute("-", no["d"], literal(date(2026, 1, 1))), compute("+", literal(None), some),
        *(answer for answer in compared if answer is not None),
    ]  # fmt: skip
    assert ask_one(spark, asked) == [None] * len(asked)
    assert temporal.comparison("=", literal(None), some) is None


@pytest.mark.parametrize(
    ("pattern", "spark"),
    [
        ("YYYY-MM-DD hh:mm:ss.nnn", "yyyy-MM-dd HH:mm:ss.SSS"),
        ("DD/MMM/YYYY", "dd/MMM/yyyy"),
        ("hh:mm a", "hh:mm a"),
        ("yyyy-MM-dd'D'HH:mm", "yyyy-MM-dd'D'HH:mm"),
        ("DDD yyyy", "DDD yyyy"),
    ],
)
def test_a_pattern_of_the_original_becomes_a_pattern_of_spark(pattern: str, spark: str) -> None:
    assert spark_pattern(pattern) == spark
