"""The text of values: what the constructors take, what they refuse, and that what is written reads back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from math import inf, nan
from typing import Any
from uuid import UUID

import pytest

from tocsin.rules.model.values import (
    MISSING,
    Circle,
    Duration,
    Line,
    Point,
    Polygon,
    Rectangle,
    circle,
    datetime_text,
    duration_text,
    parse_circle,
    parse_date,
    parse_datetime,
    parse_duration,
    parse_line,
    parse_point,
    parse_polygon,
    parse_rectangle,
    parse_time,
    parse_uuid,
    time_text,
)

SECOND = 1_000_000
DAY = 86_400 * SECOND
AN_ID = UUID("5c848e5c-6b6a-498f-8452-8847a2957421")


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_point, "1.0,2.0", Point(1.0, 2.0)),
        (parse_point, " -1e2,.5 ", Point(-100.0, 0.5)),
        (parse_point, "30.0, 30.0", Point(30.0, 30.0)),
        (parse_point, " 1 ,\t2\n", Point(1.0, 2.0)),
        (parse_line, "0, 0  1 ,1", Line(Point(0.0, 0.0), Point(1.0, 1.0))),
        (parse_circle, "1.0, 2.0 0.5", Circle(Point(1.0, 2.0), 0.5)),
        (parse_polygon, "0, 0 0 ,1 1 , 0", Polygon((Point(0.0, 0.0), Point(0.0, 1.0), Point(1.0, 0.0)))),
        (parse_line, "0,0 1,2", Line(Point(0.0, 0.0), Point(1.0, 2.0))),
        (parse_rectangle, "3,1 1,4", Rectangle(Point(1.0, 1.0), Point(3.0, 4.0))),
        (parse_circle, "1.0,2.0 0.5", Circle(Point(1.0, 2.0), 0.5)),
        (parse_polygon, "0,0 0,1 1,0", Polygon((Point(0.0, 0.0), Point(0.0, 1.0), Point(1.0, 0.0)))),
        (parse_date, "2026-11-15", date(2026, 11, 15)),
        (parse_time, "08:30:00.250", time(8, 30, 0, 250_000)),
        (parse_time, "08:30:00Z", time(8, 30)),
        (parse_datetime, "2026-11-15T08:30:00Z", datetime(2026, 11, 15, 8, 30, tzinfo=UTC)),
        (parse_datetime, "2026-11-15T08:30:00", datetime(2026, 11, 15, 8, 30, tzinfo=UTC)),
        (parse_datetime, "2026-11-15 08:30", datetime(2026, 11, 15, 8, 30, tzinfo=UTC)),
        (parse_datetime, "2026-11-15T08:30:00.5+02:00", datetime(2026, 11, 15, 6, 30, 0, 500_000, tzinfo=UTC)),
        (parse_datetime, "20261115T083000Z", datetime(2026, 11, 15, 8, 30, tzinfo=UTC)),
        (parse_uuid, "5C848E5C-6B6A-498F-8452-8847A2957421", AN_ID),
        (parse_uuid, "5c848e5c6b6a498f84528847a2957421", AN_ID),
    ],
)
def test_a_constructor_takes_its_text(parse: Callable[[str], Any], text: str, value: Any) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "texts"),
    [
        (parse_point, ["", "1", "1,", ",1", "1,2,3", "1,2 3,4", "a,b", "nan,0", "inf,0", "1_0,2", "1e999,0", "٣,1"]),
        (parse_line, ["", "1,2", "1,2 3,4 5,6"]),
        (parse_rectangle, ["1,2", "1,2 3"]),
        (parse_circle, ["1,2", "1,2 -1", "1,2 nan", "1,2 3 4", "1 2"]),
        (parse_polygon, ["", "0,0 1,1"]),
        (parse_date, ["", "2026-13-01", "2026-02-30", "15.11.2026", "2026-11-15T08:30:00Z"]),
        (parse_time, ["", "25:00:00", "08:30+01:00", "noon"]),
        (parse_datetime, ["", "2026-11-15", "2026-11-15x08:30", "2026-11-15T25:00:00Z", "0001-01-01T00:00:00+01:00"]),
        (parse_uuid, ["", "5c848e5c", "{5c848e5c-6b6a-498f-8452-8847a2957421}", "5_848e5c6b6a498f84528847a2957421"]),
        (parse_duration, ["", *"P PT P1 1D PT1S1M P1.5Y PT1.1234567S PT٣S P1YT --P1D PT1,5S P1.5DT1H PT.5H".split()]),
    ],
)
def test_other_text_is_refused_and_the_message_shows_an_example(parse: Callable[[str], Any], texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(ValueError, match="expected"):
            parse(text)


def test_messages_stay_short_and_encodable_whatever_was_given() -> None:
    for text in ("x" * 100_000, "\ud800"):
        with pytest.raises(ValueError, match="expected a point") as refused:
            parse_point(text)
        assert len(str(refused.value).encode()) < 400


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("PT0S", Duration()),
        ("PT10S", Duration(0, 10 * SECOND)),
        ("P1DT2H", Duration(0, DAY + 7200 * SECOND)),
        ("P1Y2M", Duration(14)),
        ("P1Y2M3DT4H5M6.789S", Duration(14, 3 * DAY + (4 * 3600 + 5 * 60 + 6) * SECOND + 789_000)),
        ("-P1M", Duration(-1)),
        ("-P1MT0.5S", Duration(-1, -500_000)),
        ("PT0.000001S", Duration(0, 1)),
        ("P1M-1D", Duration(1, -DAY)),
        ("P-1MT1H", Duration(-1, 3600 * SECOND)),
        ("P1YT-0.5S", Duration(12, -500_000)),
    ],
)
def test_a_duration_is_written_as_it_is_read(text: str, value: Duration) -> None:
    assert parse_duration(text) == value
    assert duration_text(value) == text


def test_durations_have_other_spellings() -> None:
    assert parse_duration("P2W") == Duration(0, 14 * DAY)
    assert parse_duration("PT90M") == Duration(0, 5400 * SECOND)
    assert parse_duration("-P1M-1D") == Duration(-1, DAY)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [("PT1.5H", "PT1H30M"), ("P0.5D", "PT12H"), ("PT0.5M", "PT30S"), ("P1.5W", "P10DT12H"), ("-P1DT0.25H", "-P1DT15M"),
     ("PT-0.5H", "-PT30M"), ("PT0.000001H", "PT0.0036S")],
)  # fmt: skip
def test_the_last_part_of_a_duration_may_have_a_fraction(text: str, canonical: str) -> None:
    assert duration_text(parse_duration(text)) == canonical


@pytest.mark.parametrize("text", ["P1.5Y", "P0.5M", "-P1Y0.5M"])
def test_a_part_of_a_month_is_refused_with_the_reason(text: str) -> None:
    with pytest.raises(ValueError, match="expected whole years and months, as they differ in length"):
        parse_duration(text)


def test_a_duration_longer_than_its_bits_is_refused() -> None:
    assert parse_duration(duration_text(Duration(2**31 - 1, 2**63 - 1))) == Duration(2**31 - 1, 2**63 - 1)
    for text in ("P178956971Y", "-P178956971Y", "P106751992D", "PT9999999999999999999S"):
        with pytest.raises(ValueError, match="longer than can be kept"):
            parse_duration(text)


def test_a_datetime_is_written_in_utc() -> None:
    assert datetime_text(datetime(2026, 11, 15, 8, 30, tzinfo=timezone(timedelta(hours=2)))) == "2026-11-15T06:30:00Z"
    assert datetime_text(datetime(2026, 11, 15, 8, 30, 0, 250_000)) == "2026-11-15T08:30:00.250000Z"
    assert datetime_text(datetime(1, 1, 1, tzinfo=UTC)) == "0001-01-01T00:00:00Z"
    assert parse_datetime("9999-12-31T23:59:59.999999Z") == datetime.max.replace(tzinfo=UTC)


def test_a_time_is_written_to_the_second_or_the_microsecond() -> None:
    assert time_text(time(8, 30)) == "08:30:00"
    assert time_text(time(8, 30, 0, 1)) == "08:30:00.000001"


def test_a_circle_needs_a_radius() -> None:
    assert circle(Point(0.0, 0.0), 0.0).radius == 0
    assert circle(Point(0.0, 0.0), inf).radius == inf
    for radius in (-1.0, nan):
        with pytest.raises(ValueError, match="radius of at least 0"):
            circle(Point(0.0, 0.0), radius)


def test_missing_is_false_and_shows_its_name() -> None:
    assert not MISSING
    assert repr(MISSING) == "MISSING"
