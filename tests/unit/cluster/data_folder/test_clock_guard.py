"""A clock that was set wrong makes nothing old, and nobody waits for a person where it comes right by itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tocsin.clock import from_us
from tocsin.cluster import schedule
from tocsin.cluster.data_folder.clock_guard import RECORD, STEP_US, ClockGuard, Clocks, ClockSuspicion, parse_record
from tocsin.rules.model.values import Duration

SECOND = 1_000_000
HOUR = 3600 * SECOND
DAY = 24 * HOUR
BEGIN = 1_800_000_000 * SECOND


@dataclass
class Machine:
    """Its two clocks. Time passes on both; the wall clock can be set."""

    wall_us: int = BEGIN
    boot_us: int = 5 * HOUR
    boots: int = 1

    def pass_time(self, us: int) -> None:
        self.wall_us += us
        self.boot_us += us

    def start_anew(self, off_us: int) -> None:
        self.wall_us, self.boot_us, self.boots = self.wall_us + off_us, 0, self.boots + 1

    def clocks(self) -> Clocks:
        return Clocks(lambda: self.wall_us, lambda: self.boot_us, f"boot {self.boots}")


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def start(tmp_path: Path, machine: Machine) -> Callable[[], ClockGuard]:
    return lambda: ClockGuard(tmp_path, machine.clocks())


def test_a_clock_that_only_goes_on_is_believed_however_long_nobody_asks(
    machine: Machine, start: Callable[[], ClockGuard]
) -> None:
    guard = start()
    for passed in (SECOND, 3 * DAY, HOUR):  # a machine that sleeps counts on
        machine.pass_time(passed)
        assert guard.age_us() == guard.now_us() == machine.wall_us
    assert guard.suspicion() is None


@pytest.mark.parametrize("step", [2 * HOUR, 3650 * DAY, -2 * HOUR, -3650 * DAY])
def test_a_step_stops_ages_while_times_go_on_until_the_clock_is_right_again(
    machine: Machine, start: Callable[[], ClockGuard], tmp_path: Path, step: int
) -> None:
    guard = start()
    machine.pass_time(10 * SECOND)
    machine.wall_us += step
    with capture_logs() as logs:
        stopped_us = guard.age_us()
    assert logs[0]["hint"].endswith(f"tocsin clock accept --data {tmp_path}")
    assert stopped_us == BEGIN + 10 * SECOND + min(step, 0)
    machine.pass_time(DAY)
    assert guard.suspicion() is ClockSuspicion.STEPPED
    assert guard.age_us() == stopped_us
    assert guard.now_us() == BEGIN + 10 * SECOND + DAY
    machine.wall_us -= step
    assert guard.suspicion() is None
    assert guard.age_us() == guard.now_us() == machine.wall_us


def test_a_small_correction_is_no_step(machine: Machine, start: Callable[[], ClockGuard]) -> None:
    guard = start()
    for step in (STEP_US, -STEP_US, -STEP_US):
        machine.wall_us += step
        assert guard.age_us() == machine.wall_us
    assert guard.suspicion() is None


@pytest.mark.parametrize("step", [2 * HOUR, -2 * HOUR])
def test_an_accepted_clock_is_believed_also_after_a_restart(
    machine: Machine, start: Callable[[], ClockGuard], step: int
) -> None:
    guard = start()
    machine.wall_us += step
    assert guard.suspicion() is ClockSuspicion.STEPPED
    assert guard.accept() == machine.wall_us
    machine.pass_time(SECOND)
    assert guard.suspicion() is None
    assert guard.age_us() == machine.wall_us
    guard.close()
    assert start().suspicion() is None


def test_a_long_pause_between_stop_and_start_is_no_step(machine: Machine, start: Callable[[], ClockGuard]) -> None:
    start().close()
    machine.pass_time(400 * DAY)
    assert start().suspicion() is None
    machine.start_anew(400 * DAY)
    assert start().suspicion() is None


def test_a_start_before_the_newest_time_on_record_is_suspect_until_that_time_comes(
    machine: Machine, start: Callable[[], ClockGuard]
) -> None:
    guard = start()
    machine.pass_time(DAY)
    guard.close()
    newest_us = machine.wall_us
    machine.start_anew(-3 * HOUR)
    guard = start()
    assert guard.suspicion() is ClockSuspicion.BEFORE
    assert guard.age_us() == machine.wall_us
    assert guard.now_us() == newest_us
    machine.pass_time(HOUR)
    assert guard.age_us() == newest_us - 3 * HOUR
    assert guard.now_us() == newest_us + HOUR
    guard = start()
    assert guard.suspicion() is ClockSuspicion.BEFORE
    machine.pass_time(2 * HOUR)
    assert guard.suspicion() is None
    assert guard.age_us() == machine.wall_us


def test_a_killed_process_leaves_a_record_that_is_a_minute_old_at_most(
    machine: Machine, start: Callable[[], ClockGuard]
) -> None:
    guard = start()
    for _ in range(100):
        machine.pass_time(7 * SECOND)
        guard.record()
    machine.wall_us -= 70 * SECOND
    assert start().suspicion() is ClockSuspicion.BEFORE


def test_commits_of_the_minute_before_a_crash_are_on_record_too(machine: Machine, tmp_path: Path) -> None:
    guard = ClockGuard(tmp_path, machine.clocks())
    machine.pass_time(50 * SECOND)
    committed_us = guard.now_us()
    machine.wall_us -= 20 * SECOND
    again = ClockGuard(tmp_path, machine.clocks(), committed_us)
    assert again.suspicion() is ClockSuspicion.BEFORE
    assert again.now_us() >= committed_us
    machine.pass_time(20 * SECOND)
    assert again.suspicion() is None
    assert again.now_us() == machine.wall_us >= committed_us


@pytest.mark.parametrize("ahead", [HOUR, 10 * DAY])
def test_commits_of_a_clock_that_was_ahead_make_no_accepted_clock_suspect(
    machine: Machine, tmp_path: Path, ahead: int
) -> None:
    machine.wall_us += ahead
    committed_us = ClockGuard(tmp_path, machine.clocks()).now_us()
    machine.wall_us -= ahead
    guard = ClockGuard(tmp_path, machine.clocks(), committed_us)
    assert guard.suspicion() is ClockSuspicion.BEFORE
    guard.accept()
    assert ClockGuard(tmp_path, machine.clocks(), committed_us).suspicion() is None


def test_what_is_suspect_stays_so_through_a_restart_of_the_process(
    machine: Machine, start: Callable[[], ClockGuard]
) -> None:
    guard = start()
    machine.wall_us += 30 * DAY
    assert guard.suspicion() is ClockSuspicion.STEPPED
    machine.pass_time(HOUR)
    guard = start()
    assert guard.suspicion() is ClockSuspicion.STEPPED
    assert guard.now_us() == BEGIN + HOUR
    machine.wall_us -= 30 * DAY
    assert start().suspicion() is None


def test_and_through_one_of_the_machine_where_the_clock_is_still_there(
    machine: Machine, start: Callable[[], ClockGuard]
) -> None:
    guard = start()
    machine.wall_us += 30 * DAY
    assert guard.suspicion() is ClockSuspicion.STEPPED
    machine.start_anew(HOUR)
    guard = start()
    assert guard.suspicion() is ClockSuspicion.UNSETTLED
    assert guard.age_us() == guard.now_us() == BEGIN
    machine.wall_us -= 30 * DAY
    assert guard.suspicion() is None


def test_a_leap_ahead_is_not_believed_either_after_a_start_before_the_newest_time(
    machine: Machine, start: Callable[[], ClockGuard]
) -> None:
    start().close()
    machine.wall_us -= SECOND
    guard = start()
    assert guard.suspicion() is ClockSuspicion.BEFORE
    machine.wall_us += 3650 * DAY
    assert guard.suspicion() is not None
    machine.wall_us -= 3650 * DAY - 2 * SECOND
    assert guard.suspicion() is None


@pytest.mark.parametrize("reboots", [False, True])
@pytest.mark.parametrize("runs", [False, True])
def test_a_suspect_clock_that_leaps_ahead_stays_suspect_at_the_next_start(
    machine: Machine, start: Callable[[], ClockGuard], runs: bool, reboots: bool
) -> None:
    guard = start()
    if not runs:
        guard.close()
    machine.wall_us -= 2 * DAY
    guard = guard if runs else start()
    assert guard.suspicion() is (ClockSuspicion.STEPPED if runs else ClockSuspicion.BEFORE)
    machine.wall_us += 402 * DAY
    assert guard.suspicion() is not None
    # Killed: nothing is written any more.
    if reboots:
        machine.start_anew(SECOND)
    for _ in range(2):
        guard = start()
        assert guard.suspicion() is not None
        assert guard.age_us() <= BEGIN
        assert guard.now_us() <= BEGIN + HOUR
        machine.pass_time(5 * SECOND)
    machine.wall_us -= 400 * DAY
    assert guard.suspicion() is None
    assert start().suspicion() is None


@pytest.mark.parametrize("reboots", [False, True])
def test_a_clock_that_was_set_back_is_not_believed_far_ahead_after_a_stop(
    machine: Machine, start: Callable[[], ClockGuard], reboots: bool
) -> None:
    guard = start()
    machine.wall_us -= 2 * DAY
    assert guard.suspicion() is ClockSuspicion.STEPPED
    guard.close()
    machine.wall_us += 402 * DAY
    if reboots:
        machine.start_anew(SECOND)
    guard = start()
    assert guard.suspicion() is not None
    assert guard.age_us() <= BEGIN
    guard.accept()
    assert start().suspicion() is None


@pytest.mark.parametrize("damaged", [False, True])
def test_without_a_record_the_newest_commit_counts(machine: Machine, tmp_path: Path, damaged: bool) -> None:
    if damaged:
        (tmp_path / RECORD).write_bytes(b"{")
    guard = ClockGuard(tmp_path, machine.clocks(), BEGIN + 10 * DAY)
    assert guard.suspicion() is ClockSuspicion.BEFORE
    assert guard.age_us() == BEGIN
    assert guard.now_us() == BEGIN + 10 * DAY


def test_a_record_of_an_older_version_that_was_suspect_still_is(machine: Machine, tmp_path: Path) -> None:
    record = {"newest_us": BEGIN, "base_us": BEGIN, "boot_us": machine.boot_us, "boot_id": machine.clocks().boot_id}
    (tmp_path / RECORD).write_text(json.dumps({**record, "stepped_to_us": BEGIN + 30 * DAY}))
    machine.wall_us += 31 * DAY
    assert ClockGuard(tmp_path, machine.clocks()).suspicion() is ClockSuspicion.STEPPED
    (tmp_path / RECORD).write_text(json.dumps({**record, "stepped_to_us": None}))
    assert ClockGuard(tmp_path, machine.clocks()).suspicion() is None


def test_a_clock_that_was_set_back_and_is_right_after_a_restart_of_the_machine_is_believed(
    machine: Machine, start: Callable[[], ClockGuard]
) -> None:
    guard = start()
    machine.wall_us -= 2 * HOUR
    assert guard.suspicion() is ClockSuspicion.STEPPED
    guard.close()
    machine.start_anew(off_us=60 * SECOND)
    machine.wall_us += 2 * HOUR
    assert start().suspicion() is None


@pytest.mark.parametrize("step", [-DAY, 365 * DAY])
async def test_what_is_due_every_ten_seconds_is_so_whatever_the_clock_does(
    machine: Machine, start: Callable[[], ClockGuard], step: int
) -> None:
    guard, ran = start(), []

    class EndedError(Exception):
        pass

    def now() -> datetime:
        return from_us(guard.now_us())

    async def sleep(seconds: float) -> None:
        machine.pass_time(int(seconds * SECOND))
        if machine.boot_us > 5 * HOUR + 4_000 * SECOND:
            raise EndedError

    async def run(tick: int, _due: datetime, _missed: int) -> None:
        ran.append(tick)
        if tick in (10, 20):
            machine.wall_us += step if tick == 10 else -step

    with pytest.raises(EndedError):
        await schedule.run_ticks(now(), Duration(micros=10 * SECOND), 0, run, now, sleep)
    assert ran == list(range(1, 401))


def test_a_damaged_record_is_set_aside(machine: Machine, start: Callable[[], ClockGuard], tmp_path: Path) -> None:
    texts = '{"newest_us": "1", "base_us": "1", "boot_us": "1", "boot_id": ""}'
    contents = [b"", b"{", b'{"newest_us": 3}', b"[]", b"\xff\xff", texts.encode()]
    for damaged in contents:
        (tmp_path / RECORD).write_bytes(damaged)
        assert start().suspicion() is None
        parse_record((tmp_path / RECORD).read_bytes())
    assert sorted(path.read_bytes() for path in (tmp_path / "lost").glob("*-clock.json*")) == sorted(contents)


STEPS = st.sampled_from(["pass", "forward", "back", "right", "restart", "reboot", "ask"])


@settings(deadline=None)
@given(st.lists(STEPS, max_size=12))
@example(["forward", "pass", "pass", "pass", "reboot"])
@example(["back", "reboot", "pass", "pass", "pass", "reboot"])
@example(["forward", "forward", "restart", "back", "reboot"])
@example(["forward", "forward", "restart", "reboot", "back"])
def test_ages_never_run_ahead_of_the_true_time_and_times_never_go_back(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    machine, folder = Machine(), tmp_path_factory.mktemp("clock")
    guard = ClockGuard(folder, machine.clocks())
    true_us, last_us, unknown = BEGIN, guard.now_us(), False
    for step in steps:
        if step == "pass":
            machine.pass_time(HOUR // 2)
            true_us += HOUR // 2
        elif step in ("forward", "back"):
            machine.wall_us += 5 * DAY if step == "forward" else -5 * DAY
        elif step == "right":
            machine.wall_us = true_us
        elif step == "restart":
            guard.close()
            guard = ClockGuard(folder, machine.clocks())
        elif step == "reboot":
            guard.close()
            machine.start_anew(0)
            guard = ClockGuard(folder, machine.clocks())
        # After a start before the newest time it is not known how late it is.
        unknown = unknown or guard.suspicion() is ClockSuspicion.BEFORE
        assert unknown or guard.age_us() <= true_us + STEP_US
        assert guard.now_us() >= last_us - STEP_US
        last_us = max(last_us, guard.now_us())
        if machine.wall_us == true_us:
            assert guard.suspicion() is None or guard.suspicion() is ClockSuspicion.BEFORE


def test_it_knows_until_when_the_process_before_ran(machine: Machine, start: Callable[[], ClockGuard]) -> None:
    guard = start()
    assert guard.ran_until_us == 0
    machine.pass_time(DAY)
    guard.close()
    ended_us = machine.wall_us
    machine.start_anew(3 * DAY)
    guard = start()
    assert (guard.ran_until_us, guard.now_us()) == (ended_us, ended_us + 3 * DAY)
    machine.pass_time(90 * SECOND)
    guard.record()
    recorded_us = machine.wall_us
    machine.pass_time(30 * SECOND)
    assert start().ran_until_us == recorded_us, "a process that was killed is known until its last record"
