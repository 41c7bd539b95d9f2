"""When an engine is replaced, when that has to wait, and what is said meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from tocsin.cluster.engine.watchdog import (
    KillEngine,
    PingAnswered,
    PingFailed,
    ReplacementRequested,
    SendPing,
    StartEngine,
    StartFailed,
    StartSucceeded,
    Watchdog,
    WatchdogAction,
    WatchdogEvent,
    WatchdogLimits,
    WatchdogTick,
)
from tocsin.settings.cluster import SparkSettings

_DEFAULTS = SparkSettings()
LIMITS = WatchdogLimits(ping_timeout_s=_DEFAULTS.ping_timeout_s, lost_limit=_DEFAULTS.unstoppable_limit)
FEW = "too few of its threads are left, since others"


class Watched:
    """A watchdog, a clock, and an engine that answers pings or does not."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.watchdog = Watchdog(LIMITS, self.now_s, Random(1))
        self.answers: PingAnswered | PingFailed | None = PingAnswered()
        self.sees = WatchdogTick()
        self.done: list[WatchdogAction] = []

    def tell(self, event: WatchdogEvent) -> Sequence[WatchdogAction]:
        actions = self.watchdog.handle(event, self.now_s)
        self.done += actions
        for action in actions:
            if isinstance(action, SendPing) and self.answers is not None:
                self.tell(self.answers)
        return actions

    def pass_time(self, seconds: float, step_s: float = 0.5) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += step_s
            self.tell(self.sees)

    @property
    def kills(self) -> list[str]:
        return [action.reason for action in self.done if isinstance(action, KillEngine)]

    @property
    def starts(self) -> int:
        return sum(isinstance(action, StartEngine) for action in self.done)

    def trouble(self) -> str:
        return self.watchdog.trouble(self.now_s) or ""


def test_an_engine_that_answers_is_left_alone() -> None:
    world = Watched()
    world.pass_time(3_600)
    assert set(world.done) == {SendPing()}
    assert world.trouble() == ""
    assert world.now_s - world.watchdog.last_answer_s <= LIMITS.ping_period_s


def test_an_engine_that_does_not_answer_gets_no_work_and_is_then_replaced() -> None:
    world = Watched()
    world.pass_time(10)
    world.answers = None
    world.pass_time(LIMITS.silent_s + LIMITS.ping_period_s)
    assert "has not answered for" in world.trouble()
    assert world.kills == []
    world.pass_time(LIMITS.ping_timeout_s)
    assert world.kills == ["it has not answered for 20 s"]
    assert (world.starts, world.watchdog.state) == (1, "starting")
    assert "is being replaced: it has not answered" in world.trouble()
    world.tell(StartSucceeded())
    world.answers = PingAnswered()
    world.pass_time(60)
    assert (world.trouble(), world.starts, world.watchdog.replacements) == ("", 1, 1)


def test_one_that_cannot_be_asked_is_as_one_that_does_not_answer() -> None:
    world = Watched()
    world.answers = PingFailed()
    world.pass_time(LIMITS.ping_timeout_s - LIMITS.ping_period_s)
    assert world.kills == []
    world.pass_time(2 * LIMITS.ping_period_s)
    assert world.starts == 1


@pytest.mark.parametrize(
    ("sees", "answers", "reason"),
    [
        (WatchdogTick(has_ended=True), PingAnswered(), "its process has ended"),
        (WatchdogTick(), PingAnswered(is_stopped=True), "Spark's context has ended"),
        (WatchdogTick(lost=4), PingAnswered(), "4 of its threads could not be stopped"),
        (WatchdogTick(lost=1, is_exhausted=True), PingAnswered(), f"{FEW} could not be stopped"),
    ],
)
def test_one_that_has_ended_or_is_full_of_what_cannot_be_stopped_is_replaced_at_once(
    sees: WatchdogTick, answers: PingAnswered, reason: str
) -> None:
    world = Watched()
    world.sees, world.answers = sees, answers
    world.pass_time(LIMITS.ping_period_s)
    assert world.kills == [reason]
    assert world.starts == 1


def test_tasks_count_as_stuck_when_they_have_not_ended_for_long() -> None:
    world = Watched()
    world.answers, world.sees = PingAnswered(stuck=3), WatchdogTick(lost=1)
    world.pass_time(LIMITS.stuck_s - 4)
    world.answers = PingAnswered()  # they have ended
    world.pass_time(4)
    world.answers = PingAnswered(stuck=3)
    world.pass_time(LIMITS.stuck_s - 2)
    assert (world.kills, world.watchdog.stuck) == ([], 0)
    world.pass_time(6)
    assert world.kills == ["4 of its threads could not be stopped"]


def test_what_cannot_be_stopped_replaces_the_engine_once_in_ten_minutes_and_is_no_crash() -> None:
    world = Watched()
    world.sees = WatchdogTick(lost=4)
    world.pass_time(1)
    world.tell(StartSucceeded())
    world.pass_time(LIMITS.window_s - 5)
    assert (world.starts, world.trouble()) == (1, ""), "the threads stay lost for a while"
    world.pass_time(5)
    assert world.starts == 2
    world.tell(StartSucceeded())
    for _ in range(3):
        world.tell(WatchdogTick(has_ended=True))
        assert world.watchdog.state == "starting", "those two do not count as crashes"
        world.tell(StartSucceeded())
    world.tell(WatchdogTick(has_ended=True))
    assert world.watchdog.state == "waiting"


def test_an_engine_without_threads_is_replaced_at_once_but_not_again_and_again() -> None:
    world = Watched()
    for count in (1, 2, 3):
        world.tell(WatchdogTick(lost=1, is_exhausted=True))
        assert (world.starts, world.watchdog.state) == (count, "starting")
        world.tell(StartSucceeded())
    world.tell(WatchdogTick(lost=1, is_exhausted=True))
    assert (world.starts, world.watchdog.state) == (3, "waiting")
    assert "too few of its threads are left" in world.trouble()


def test_an_engine_is_replaced_when_work_asks_for_one_without_leftovers() -> None:
    world = Watched()
    for count in range(1, 6):
        assert world.tell(ReplacementRequested("a part is tried"))[0] == KillEngine("a part is tried", is_overfull=True)
        assert (world.starts, world.watchdog.state) == (count, "starting"), "that is no crash"
        assert world.tell(ReplacementRequested("a part is tried")) == (), "one is on its way"
        world.tell(StartSucceeded())


def test_an_engine_whose_slots_are_all_stuck_is_replaced_although_another_was_of_late() -> None:
    world = Watched()
    world.tell(WatchdogTick(lost=4))
    world.tell(StartSucceeded())
    world.answers = PingAnswered(stuck=5, slots=6)
    world.pass_time(LIMITS.stuck_s + 6)
    assert world.starts == 1
    world.answers = PingAnswered(stuck=6, slots=6)
    world.pass_time(LIMITS.stuck_s + 6)
    assert world.kills[1:] == [f"{FEW} could not be stopped"]


def test_the_silence_of_an_engine_while_this_process_was_stopped_itself_says_nothing() -> None:
    world = Watched()
    world.answers = None
    world.pass_time(4)
    world.pass_time(3_600, step_s=3_600)
    assert world.kills == []
    world.tell(PingAnswered())
    world.answers = PingAnswered()
    world.pass_time(60)
    assert world.kills == []


def test_three_replacements_in_ten_minutes_and_the_next_one_waits_longer_each_time() -> None:
    world = Watched()
    for _ in range(3):
        world.tell(WatchdogTick(has_ended=True))
        world.tell(StartSucceeded())
        world.pass_time(10)
    assert world.starts == 3
    waits = []
    for _ in range(6):
        world.tell(WatchdogTick(has_ended=True))
        assert world.watchdog.state == "waiting"
        assert "replaced too often of late, and is tried again in" in world.trouble()
        assert "its process has ended" in world.trouble()
        begun_s, before = world.now_s, world.starts
        assert world.watchdog.retry_after_s(begun_s) >= LIMITS.first_wait_s
        while world.starts == before:
            world.pass_time(1)
        waits.append(world.now_s - begun_s)
        world.tell(StartSucceeded())
        world.pass_time(1)
    assert len(world.kills) == 9, "one that is dead is killed once, however long the next one waits"
    for number, wait_s in enumerate(waits):
        least_s = min(LIMITS.longest_wait_s, LIMITS.first_wait_s * 2**number)
        assert least_s <= wait_s <= 1.5 * least_s + 1
    world.pass_time(2 * LIMITS.window_s)
    world.tell(WatchdogTick(has_ended=True))
    assert world.watchdog.state == "starting", "after a quiet time it does not wait"


def test_an_engine_that_cannot_be_started_is_tried_again_and_then_waits() -> None:
    world = Watched()
    world.tell(WatchdogTick(has_ended=True))
    for _ in range(3):
        world.tell(StartFailed("no memory"))
    assert (world.starts, world.watchdog.state) == (3, "waiting")
    assert "no memory" in world.trouble()
    world.pass_time(2 * LIMITS.first_wait_s)
    assert (world.starts, world.watchdog.state) == (4, "starting")
    world.tell(StartSucceeded())
    assert world.trouble() == ""


def test_what_the_engine_before_answers_says_nothing_of_the_next_one() -> None:
    world = Watched()
    world.tell(WatchdogTick(has_ended=True))
    world.tell(PingAnswered(is_stopped=True))
    assert (world.starts, len(world.kills)) == (1, 1)
