"""When ticks are due: counted from the anchor, months by the calendar."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.rules.model.values import Duration
from tocsin.rules.periods import check_period, instant, last_tick, parse_period

ANCHOR = datetime(2026, 1, 31, 8, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "tick", "due"),
    [
        ("PT20S", 1, "2026-01-31T08:30:20"),
        ("PT20S", 3, "2026-01-31T08:31:00"),
        ("P1D", 2, "2026-02-02T08:30:00"),
        ("P1W", 1, "2026-02-07T08:30:00"),
        ("P1M", 1, "2026-02-28T08:30:00"),
        ("P1M", 2, "2026-03-31T08:30:00"),
        ("P1Y", 2, "2028-01-31T08:30:00"),
        ("P1MT1H", 2, "2026-03-31T10:30:00"),
        ("PT0.5S", 3, "2026-01-31T08:30:01.5"),
    ],
)
def test_a_tick_is_due_so_many_periods_after_the_anchor(text: str, tick: int, due: str) -> None:
    expected = datetime.fromisoformat(due).replace(tzinfo=UTC)
    period = parse_period(text)
    assert instant(ANCHOR, period, tick) == expected
    assert last_tick(ANCHOR, period, expected) == tick
    assert last_tick(ANCHOR, period, expected - timedelta(microseconds=1)) == tick - 1


@pytest.mark.parametrize("text", ["PT0S", "PT0.09S", "-P1D", "P1M-1D", "P-1M1D", "P101Y", "P40000D"])
def test_what_is_no_period_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"period|duration"):
        parse_period(text)


def test_nothing_is_due_before_the_first_period_is_over_and_nothing_beyond_the_calendar() -> None:
    assert last_tick(ANCHOR, Duration(micros=1_000_000), ANCHOR - timedelta(days=1)) == 0
    assert last_tick(ANCHOR, Duration(micros=1_000_000), ANCHOR) == 0
    assert instant(ANCHOR, Duration(months=1_200), 100) is None
    assert last_tick(ANCHOR, Duration(months=1_200), datetime.max.replace(tzinfo=UTC)) == 79


@given(
    st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)),
    st.builds(Duration, st.integers(0, 30), st.integers(0, 10**13)).filter(
        lambda one: one.months or one.micros > 10**5
    ),
    st.integers(0, 10**4),
)
def test_the_last_tick_is_the_latest_that_is_due(anchor: datetime, period: Duration, tick: int) -> None:
    check_period(period)
    anchor = anchor.replace(tzinfo=UTC)
    due = instant(anchor, period, tick)
    after = instant(anchor, period, tick + 1)
    if due is not None:
        assert last_tick(anchor, period, due) == tick
        assert after is None or after > due
