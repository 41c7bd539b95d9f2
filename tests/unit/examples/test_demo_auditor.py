"""The demo's auditor on made-up histories: it finds what was lost or told wrongly, and accuses nobody else."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from examples.emergency.auditor import LATE_S, RULES, History, Verdict, judge
from examples.emergency.data import METRES_PER_DEGREE, Place, Report, Shelter
from tocsin.language.syntax import script
from tocsin.language.syntax.statements import CreateChannel
from tocsin.sdk import Cursor, Gap, Result, Subscription

AT_ONCE, PERIODIC, HOME = "NewEmergenciesNearUser", "EmergenciesNearUser", "NewEmergenciesOfTypeAtWithShelters"
TOWN = Place(-41.28, 174.78)
ZONE_M = 500.0
BEGAN_S = 1_763_200_000.0


def north(metres: float) -> Place:
    return Place(TOWN.latitude + metres / METRES_PER_DEGREE, TOWN.longitude)


def moment(second: float) -> datetime:
    return datetime.fromtimestamp(BEGAN_S + second, UTC)


@dataclass
class FakeHistory:
    """A history, told in seconds since it began; unless said otherwise the system is quick and faultless."""

    history: History = field(
        default_factory=lambda: History(
            [Shelter("Near", north(100), 10, open=True), Shelter("Far", north(900), 10, open=True)]
        )
    )
    told: int = 0

    def subscribes(self, user: str, channel: str = AT_ONCE, *values: Any, at: float = 0.0) -> int:
        """The interest."""
        parameters = values or (user,)
        interest = 1 + sum(1 for _ in self.history.watches)
        made = Subscription(f"sub_{interest}", f"emergency.{channel}", parameters, interest, Cursor(0, 0, 0), "inline")
        self.history.subscribed(user, made, BEGAN_S + at, BEGAN_S + at + 0.1)
        return interest

    def is_at(self, user: str, metres: float, at: float, seen: float | None = None) -> None:
        """Queries see it at `seen`."""
        sent = self.history.place(user, north(metres), BEGAN_S + at, BEGAN_S + at)
        sent.visible_s = BEGAN_S + (at + 0.2 if seen is None else seen)

    def reports(self, at: float, *, kind: str = "fire", seen: float | None = None, stamped: float | None = None) -> int:
        report = Report(kind, 5, TOWN, ZONE_M, moment(at if stamped is None else stamped), "Smoke")
        sent = self.history.report(report, BEGAN_S + at)
        sent.visible_s = BEGAN_S + (at + 0.2 if seen is None else seen)
        return sent.number

    def hears(
        self, user: str, interest: int, number: int, at: float, *, executed: float | None = None, again: bool = False,
        **more: Any,
    ) -> None:  # fmt: skip
        self.told += not again
        channel = self.history.watches[user, interest].channel if (user, interest) in self.history.watches else AT_ONCE
        result = {"report": {"number": number, "emergencyType": "fire"}, **more}
        executed_at = moment(at - 0.2 if executed is None else executed)
        one = Result(f"emergency.{channel}", interest, Cursor(1, self.told, 0), executed_at, result)
        self.history.received(user, one, BEGAN_S + at)

    def judged(self) -> Verdict:
        return judge(self.history)


@pytest.fixture
def story() -> FakeHistory:
    return FakeHistory()


# ---------------------------------------------------------------- at once


def test_who_was_in_the_zone_and_told_is_nobodys_loss(story: FakeHistory) -> None:
    ann = story.subscribes("ann")
    story.is_at("ann", 100, at=1)
    story.hears("ann", ann, story.reports(at=3), at=4)
    assert story.judged() == Verdict(1, [], [], 0)


def test_a_report_that_somebody_in_the_zone_never_heard_of_is_lost(story: FakeHistory) -> None:
    ann, bo = story.subscribes("ann"), story.subscribes("bo")
    story.is_at("ann", 100, at=1)
    story.is_at("bo", -100, at=1)
    number = story.reports(at=3)
    story.hears("ann", ann, number, at=4)
    assert story.judged().lost == [f"report {number} (fire) for bo through {AT_ONCE}"]
    assert not story.judged().good
    story.hears("bo", bo, number, at=20)
    assert story.judged().good


def test_a_channel_that_never_runs_has_lost_everything(story: FakeHistory) -> None:
    story.subscribes("ann")
    story.is_at("ann", 100, at=1)
    story.reports(at=3)
    story.reports(at=4)
    assert len(story.judged().lost) == 2


def test_one_of_many_results_that_is_missing_is_found(story: FakeHistory) -> None:
    ann = story.subscribes("ann")
    for second in range(1, 40):
        story.is_at("ann", 100, at=second)
        number = story.reports(at=second + 0.3)
        if number != 17:
            story.hears("ann", ann, number, at=second + 0.8)
    verdict = story.judged()
    assert verdict.due == 39
    assert verdict.lost == [f"report 17 (fire) for ann through {AT_ONCE}"]


def test_who_is_outside_or_has_not_said_where_they_are_must_not_be_told(story: FakeHistory) -> None:
    ann, bo = story.subscribes("ann"), story.subscribes("bo")
    story.is_at("ann", 700, at=1)
    number = story.reports(at=3)
    assert story.judged() == Verdict(0, [], [], 0)
    story.hears("ann", ann, number, at=4)
    story.hears("bo", bo, number, at=4)
    assert len(story.judged().wrong) == 2


def test_at_the_border_of_a_zone_both_is_right(story: FakeHistory) -> None:
    ann = story.subscribes("ann")
    story.is_at("ann", ZONE_M + 0.5, at=1)
    number = story.reports(at=3)
    assert story.judged().good
    story.hears("ann", ann, number, at=4)
    assert story.judged() == Verdict(0, [], [], 0)


def test_who_crosses_the_border_while_a_report_is_matched_may_be_told_and_need_not(story: FakeHistory) -> None:
    ann, bo = story.subscribes("ann"), story.subscribes("bo")
    story.is_at("bo", 0, at=1)
    story.is_at("ann", 100, at=1)
    number = story.reports(at=3)
    story.is_at("ann", 900, at=3.5)
    story.hears("bo", bo, number, at=4)
    assert story.judged() == Verdict(1, [], [], 0)
    story.hears("ann", ann, number, at=5)
    assert story.judged() == Verdict(1, [], [], 0)


def test_who_leaves_after_a_report_was_matched_must_be_told(story: FakeHistory) -> None:
    story.subscribes("ann")
    bo = story.subscribes("bo")
    story.is_at("bo", 0, at=1)
    story.is_at("ann", 100, at=1)
    number = story.reports(at=3)
    story.hears("bo", bo, number, at=4)
    story.is_at("ann", 900, at=4.5)
    assert story.judged().lost == [f"report {number} (fire) for ann through {AT_ONCE}"]


def test_where_somebody_was_before_does_not_count_once_queries_see_where_they_are(story: FakeHistory) -> None:
    ann = story.subscribes("ann")
    story.is_at("ann", 100, at=1)
    story.is_at("ann", 900, at=2, seen=2.5)
    number = story.reports(at=3)
    assert story.judged().due == 0
    story.hears("ann", ann, number, at=4)
    assert len(story.judged().wrong) == 1


def test_who_was_last_seen_over_a_minute_ago_is_not_told(story: FakeHistory) -> None:
    ann = story.subscribes("ann")
    story.is_at("ann", 100, at=1)
    number = story.reports(at=70)
    assert story.judged().due == 0
    story.hears("ann", ann, number, at=71)
    assert len(story.judged().wrong) == 1


def test_a_report_that_was_never_acknowledged_may_be_told_and_need_not(story: FakeHistory) -> None:
    ann = story.subscribes("ann")
    story.is_at("ann", 100, at=1)
    number = story.reports(at=3, seen=float("inf"))
    assert story.judged() == Verdict(0, [], [], 0)
    story.hears("ann", ann, number, at=4)
    assert story.judged() == Verdict(0, [], [], 0)


def test_who_subscribes_while_a_report_is_matched_may_be_told_and_who_did_so_later_must_not(story: FakeHistory) -> None:
    story.is_at("ann", 100, at=1)
    story.is_at("bo", 100, at=1)
    ann = story.subscribes("ann", at=2.95)
    number = story.reports(at=3)
    assert story.judged().due == 0
    story.hears("ann", ann, number, at=4)
    assert story.judged() == Verdict(0, [], [], 0)
    bo = story.subscribes("bo", at=6)
    story.hears("bo", bo, number, at=7)
    assert len(story.judged().wrong) == 1


def test_the_same_twice_is_right_under_one_name_and_wrong_under_two(story: FakeHistory) -> None:
    ann = story.subscribes("ann")
    story.is_at("ann", 100, at=1)
    number = story.reports(at=3)
    story.hears("ann", ann, number, at=4)
    story.hears("ann", ann, number, at=9, again=True)
    assert story.judged() == Verdict(1, [], [], 1)
    story.hears("ann", ann, number, at=10)
    assert story.judged().wrong == [f"report {number} (fire) for ann through {AT_ONCE}: delivered twice"]


def test_what_somebody_else_subscribed_to_is_wrong_and_so_is_a_gap_or_a_report_that_nobody_sent(
    story: FakeHistory,
) -> None:
    ann = story.subscribes("ann")
    story.is_at("ann", 100, at=1)
    story.is_at("bo", 100, at=1)
    number = story.reports(at=3)
    story.hears("ann", ann, number, at=4)
    story.hears("bo", ann, number, at=4)
    story.hears("ann", ann, 99, at=4)
    story.history.received("ann", Gap("emergency.x", ann, Cursor(1, 1, 0)), BEGAN_S + 5)
    verdict = story.judged()
    assert (verdict.due, len(verdict.lost), len(verdict.wrong)) == (1, 0, 3)


def test_a_home_is_told_of_its_kind_with_the_shelters_in_the_zone(story: FakeHistory) -> None:
    home = (TOWN.latitude, TOWN.longitude)
    ann = story.subscribes("ann", HOME, "fire", *home)
    other = story.subscribes("bo", HOME, "flood", *home)
    number = story.reports(at=3)
    story.hears("ann", ann, number, at=4, shelters=[{"name": "Near"}])
    assert story.judged() == Verdict(1, [], [], 0)
    story.hears("bo", other, number, at=4, shelters=[{"name": "Near"}])
    assert len(story.judged().wrong) == 1


@pytest.mark.parametrize("names", [[], ["Near", "Far"], ["Elsewhere"]])
def test_other_shelters_than_those_in_the_zone_are_wrong(story: FakeHistory, names: list[str]) -> None:
    ann = story.subscribes("ann", HOME, "fire", TOWN.latitude, TOWN.longitude)
    story.hears("ann", ann, story.reports(at=3), at=4, shelters=[{"name": name} for name in names])
    assert len(story.judged().wrong) == 1


# ---------------------------------------------------------------- once a period


def test_an_execution_that_somebody_heard_of_must_have_told_all_who_were_there(story: FakeHistory) -> None:
    ann, bo = story.subscribes("ann", PERIODIC), story.subscribes("bo", PERIODIC)
    for user in ("ann", "bo"):
        story.is_at(user, 100, at=4)
    number = story.reports(at=5)
    assert story.judged().due == 0, "no execution is known"
    story.hears("ann", ann, number, at=11, executed=10)
    assert story.judged().lost == [f"report {number} (fire) for bo through {PERIODIC}"]
    story.hears("bo", bo, number, at=12, executed=10)
    assert story.judged() == Verdict(2, [], [], 0)


def test_a_report_in_two_windows_is_told_twice_and_in_one_window_once(story: FakeHistory) -> None:
    ann = story.subscribes("ann", PERIODIC)
    story.is_at("ann", 100, at=4)
    story.is_at("ann", 100, at=12)
    # It came while the execution of second 10 was late, and is in the window of that of second 20 as well.
    number = story.reports(at=10.5)
    story.hears("ann", ann, number, at=12, executed=10)
    story.hears("ann", ann, number, at=21, executed=20)
    assert story.judged() == Verdict(1, [], [], 0)
    story.hears("ann", ann, number, at=21, executed=20)
    assert len(story.judged().wrong) == 1


def test_a_report_older_than_the_window_must_not_be_told_and_one_at_its_end_may(story: FakeHistory) -> None:
    ann = story.subscribes("ann", PERIODIC)
    story.is_at("ann", 100, at=12)
    old, border = story.reports(at=5), story.reports(at=10)
    story.hears("ann", ann, border, at=21, executed=20)
    assert story.judged() == Verdict(0, [], [], 0)
    story.hears("ann", ann, old, at=21, executed=20)
    assert len(story.judged().wrong) == 1


def test_a_report_that_queries_saw_after_the_execution_began_need_not_be_told(story: FakeHistory) -> None:
    ann, bo = story.subscribes("ann", PERIODIC), story.subscribes("bo", PERIODIC)
    for user in ("ann", "bo"):
        story.is_at(user, 100, at=8)
    number, _late = story.reports(at=9), story.reports(at=9.9, seen=10.1)
    for user, interest in (("ann", ann), ("bo", bo)):
        story.hears(user, interest, number, at=11, executed=10)
    assert story.judged() == Verdict(2, [], [], 0)


def test_a_channel_with_a_period_that_never_tells_anything_is_found(story: FakeHistory) -> None:
    story.subscribes("ann", PERIODIC)
    story.reports(at=1)
    assert story.judged().good
    story.reports(at=1 + 11 + LATE_S)
    assert story.judged().lost == [f"{PERIODIC}: delivered nothing at all"]


# ---------------------------------------------------------------- the channels themselves


def test_the_auditor_knows_the_channels_as_they_are_created() -> None:
    text = (Path(__file__).parents[3] / "examples/emergency/channels.sql").read_text("utf-8")
    made = [statement for statement in script.statements(text) if isinstance(statement, CreateChannel)]
    told = {
        channel.name.name: (
            channel.arity or len(channel.parameters),
            None if channel.period is None else channel.period.micros / 1e6,
        )
        for channel in made
    }
    known = {name: (len(rule.parameters), rule.window_s) for name, rule in RULES.items()}
    assert told == known
