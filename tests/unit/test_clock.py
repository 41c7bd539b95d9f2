"""The time by which a broker deletes: it stands still while the wall clock is suspect."""

from __future__ import annotations

from tocsin.clock import STEP_US, AgeClock

HOUR_US = STEP_US


class Machine:
    def __init__(self) -> None:
        self.wall_us, self.boot_us = 1_000 * HOUR_US, 7 * HOUR_US
        self.told: list[bool] = []
        self.age = AgeClock(lambda: self.wall_us, lambda: self.boot_us, self.told.append)

    def wait(self, span_us: int) -> None:
        self.wall_us += span_us
        self.boot_us += span_us


def test_time_that_passes_is_no_step_however_long_it_is() -> None:
    machine = Machine()
    for span_us in (1, HOUR_US, 9_000 * HOUR_US):
        machine.wait(span_us)
        assert machine.age() == machine.wall_us
    machine.wall_us += HOUR_US // 2
    assert machine.age() == machine.wall_us, "a clock that is set by less than an hour is believed"


def test_nothing_grows_old_while_the_clock_is_ahead_until_it_is_right_again() -> None:
    machine = Machine()
    machine.wait(5)
    right_us = machine.age()
    machine.wall_us += 9_000 * HOUR_US
    for _ in range(3):
        assert machine.age() == right_us
        machine.wait(HOUR_US)
    machine.wall_us -= 9_000 * HOUR_US
    assert machine.age() == machine.wall_us == right_us + 3 * HOUR_US
    assert machine.told == [True, False]


def test_a_clock_that_is_set_back_makes_nothing_older() -> None:
    machine = Machine()
    machine.wall_us -= 100 * HOUR_US
    assert machine.age() == machine.wall_us
