"""Checks that no result was lost, duplicated or wrong, from what users sent and received alone.

`History` records what the users of the demo did and received, each with its time. `judge` computes which results each
user had to get and was allowed to get, by the definitions in channels.sql, and compares them with those received. Where
a time or a border is too close to decide, a result is allowed but not required.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from examples.emergency.data import Place, Report, Shelter, distance_m
from tocsin.sdk import Cursor, Event, Result, Subscription

BORDER_M: Final = 1.0  # this near to the border of a zone, both sides are allowed
BORDER_S: Final = 0.05  # the same for the end of a window
LATE_S: Final = 30.0  # a channel that has not run this long after a report has lost it
SEEN_S: Final = 60.0  # continuous channels serve users whose location is at most this old


@dataclass(frozen=True, slots=True)
class Rule:
    """The parameters of a channel, and its window; None for a continuous channel, which has none."""

    parameters: tuple[str, ...]
    window_s: float | None


_PERIODIC: Final = {
    "EmergenciesOfType": Rule(("type",), 10),
    "EmergenciesAt": Rule(("latitude", "longitude"), 20),
    "EmergenciesOfTypeAt": Rule(("type", "latitude", "longitude"), 30),
    "EmergenciesOfTypeAtWithShelters": Rule(("type", "latitude", "longitude"), 60),
    "EmergenciesNearUser": Rule(("user",), 10),
    "EmergenciesOfTypeNearUser": Rule(("type", "user"), 10),
    "EmergenciesOfTypeNearUserWithShelters": Rule(("type", "user"), 10),
}
RULES: Final = _PERIODIC | {f"New{name}": Rule(rule.parameters, None) for name, rule in _PERIODIC.items()}

# ---------------------------------------------------------------- what happened


@dataclass(slots=True)
class SentReport:
    """`visible_s`: when queries saw the report."""

    number: int
    report: Report
    sent_s: float
    visible_s: float = math.inf


@dataclass(slots=True)
class SentPlace:
    place: Place
    stamped_s: float
    sent_s: float
    visible_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Watch:
    """A subscription of a user, requested and answered at these times."""

    user: str
    channel: str
    rule: Rule
    given: Mapping[str, Any]
    asked_s: float
    answered_s: float


@dataclass(frozen=True, slots=True)
class Heard:
    """A received result. `online_since_s`: when the user came online. `live`: before the report was sent."""

    user: str
    result: Result
    at_s: float
    online_since_s: float
    live: bool

    @property
    def number(self) -> int:
        return int(self.result.result["report"]["number"])

    @property
    def executed_s(self) -> float:
        return self.result.executed_at.timestamp()


class History:
    """Everything sent and received. Reports are numbered; each is sent after the one before was acknowledged. The
    places of a user are sent in the same way."""

    def __init__(self, shelters: Iterable[Shelter] = ()) -> None:
        self.shelters = list(shelters)
        self.reports: list[SentReport] = []
        self.places: dict[str, list[SentPlace]] = defaultdict(list)
        self.watches: dict[tuple[str, int], Watch] = {}
        self.heard: list[Heard] = []
        self.trouble: list[str] = []

    def report(self, report: Report, sent_s: float) -> SentReport:
        """Records a report or a place; call it before sending."""
        self.reports.append(SentReport(len(self.reports), report, sent_s))
        return self.reports[-1]

    def place(self, user: str, place: Place, stamped_s: float, sent_s: float) -> SentPlace:
        """Records a report or a place; call it before sending."""
        self.places[user].append(SentPlace(place, stamped_s, sent_s))
        return self.places[user][-1]

    def subscribed(self, user: str, made: Subscription, asked_s: float, answered_s: float) -> None:
        channel = made.channel.rpartition(".")[2]
        rule = RULES[channel]
        given = dict(zip(rule.parameters, made.parameters, strict=True))
        self.watches[user, made.interest] = Watch(user, channel, rule, given, asked_s, answered_s)

    def received(self, user: str, event: Event, at_s: float, online_since_s: float = math.inf) -> None:
        if not isinstance(event, Result):
            self.trouble.append(f"{user} received {event}")
            return
        number = int(event.result["report"]["number"])
        live = number < len(self.reports) and online_since_s < self.reports[number].sent_s
        self.heard.append(Heard(user, event, at_s, online_since_s, live))


# ---------------------------------------------------------------- what had to happen

# User, interest, number of the report; and the execution, if several may deliver the same report.
Key = tuple[str, int, int, float | None]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`due` results had to be delivered, and `lost` were not. `wrong` ones should not have been delivered, or not
    in this form, or not twice. `duplicates` came twice with the same cursor, as they may after a lost connection.
    """

    due: int
    lost: Sequence[str]
    wrong: Sequence[str]
    duplicates: int

    @property
    def good(self) -> bool:
        return not self.lost and not self.wrong


def judge(history: History) -> Verdict:
    judging = _Judge(history)
    delivered: set[Key] = set()
    wrong, duplicates = list(history.trouble), 0
    named: set[tuple[str, int, Cursor]] = set()
    for heard in history.heard:
        result = heard.result
        name = (heard.user, result.interest, result.cursor)
        if name in named:
            duplicates += 1
            continue
        named.add(name)
        watch = history.watches.get((heard.user, result.interest))
        if watch is None or watch.channel != channel_of(heard):
            wrong.append(f"{heard.user} got a result of {result.channel} without a subscription")
            continue
        key = (heard.user, result.interest, heard.number, None if watch.rule.window_s is None else heard.executed_s)
        if key in delivered:
            wrong.append(f"{judging.text(key)}: delivered twice")
        elif not judging.is_allowed(watch, heard):
            wrong.append(f"{judging.text(key)}: delivered to the wrong user, or with wrong shelters")
        delivered.add(key)
    due = set(judging.due())
    lost = sorted(due - delivered, key=lambda key: (key[2], key[0], key[1]))
    return Verdict(len(due), [*map(judging.text, lost), *judging.silent()], wrong, duplicates)


@dataclass(frozen=True, slots=True)
class _Execution:
    """An execution, which read its datasets at some time between `from_s` and `to_s`."""

    from_s: float
    to_s: float
    clock_from_s: float
    clock_to_s: float


# Whether something certainly holds, and whether it may hold.
_Certainty = tuple[bool, bool]
_NO: Final[_Certainty] = (False, False)


class _Judge:
    def __init__(self, history: History) -> None:
        self._history = history
        self._reports = history.reports
        # Reports are matched in the order in which they were sent. So a result of a continuous channel proves that all
        # earlier reports are matched by then.
        self._matched_s: dict[str, list[float]] = defaultdict(lambda: [math.inf] * len(self._reports))
        # The times of the executions of a repetitive channel, and when a user first got a result of each.
        self._executions: dict[str, dict[float, float]] = defaultdict(dict)
        for heard in history.heard:
            channel, number, at_s = channel_of(heard), heard.number, heard.at_s
            if number < len(self._reports):
                moments = self._matched_s[channel]
                moments[number] = min(moments[number], at_s)
            executions = self._executions[channel]
            executions[heard.executed_s] = min(executions.get(heard.executed_s, math.inf), at_s)
        for moments in self._matched_s.values():
            for number in range(len(moments) - 2, -1, -1):
                moments[number] = min(moments[number], moments[number + 1])

    # ------------------------------------------------------------ required and allowed results

    def due(self) -> Iterator[Key]:
        for (user, interest), watch in self._history.watches.items():
            if watch.rule.window_s is None:
                for sent in self._reports:
                    if self._matches(watch, sent, self._match_of(watch, sent))[0]:
                        yield user, interest, sent.number, None
                continue
            for executed_s in self._executions[watch.channel]:
                execution = self._execution_at(watch, executed_s)
                for sent in self._reports:
                    if sent.visible_s <= executed_s and self._matches(watch, sent, execution)[0]:
                        yield user, interest, sent.number, executed_s

    def is_allowed(self, watch: Watch, heard: Heard) -> bool:
        if heard.number >= len(self._reports):
            return False
        sent = self._reports[heard.number]
        at_once = watch.rule.window_s is None
        execution = self._match_of(watch, sent) if at_once else self._execution_at(watch, heard.executed_s)
        return self._matches(watch, sent, execution)[1] and self._right_shelters(sent.report, heard.result.result)

    def silent(self) -> Iterator[str]:
        """Yields the repetitive channels without a known execution, although there was time for one."""
        seen = set()
        for watch in self._history.watches.values():
            window_s = watch.rule.window_s
            if window_s is None or watch.channel in seen or self._executions[watch.channel]:
                continue
            after = [report for report in self._reports if report.sent_s > watch.answered_s]
            if after and after[-1].sent_s - after[0].sent_s > window_s + LATE_S:
                seen.add(watch.channel)
                yield f"{watch.channel}: delivered nothing at all"

    def _match_of(self, watch: Watch, sent: SentReport) -> _Execution:
        matched_s = self._matched_s[watch.channel][sent.number]
        to_s = matched_s if matched_s < math.inf else sent.sent_s + LATE_S
        return _Execution(sent.sent_s, to_s, sent.sent_s, to_s)

    def _execution_at(self, watch: Watch, executed_s: float) -> _Execution:
        # Its clock shows the time when it was due, even if it began late.
        return _Execution(executed_s, self._executions[watch.channel][executed_s], executed_s, executed_s)

    def _matches(self, watch: Watch, sent: SentReport, execution: _Execution) -> _Certainty:
        report, given = sent.report, watch.given
        if given.get("type", report.emergency_type) != report.emergency_type:
            return _NO
        subscribed = (watch.answered_s <= execution.from_s, watch.asked_s <= execution.to_s)
        visible = (sent.visible_s < math.inf, sent.sent_s <= execution.to_s)
        recent = _within(report.timestamp.timestamp(), watch.rule.window_s or math.inf, execution)
        answer = _both(subscribed, visible, recent)
        if answer != _NO and "latitude" in given:
            answer = _both(answer, _inside(report, Place(given["latitude"], given["longitude"])))
        if answer != _NO and "user" in given:
            answer = _both(answer, self._near(given["user"], report, execution, watch.rule.window_s or SEEN_S))
        return answer

    def _near(self, user: str, report: Report, execution: _Execution, window_s: float) -> _Certainty:
        """Whether the user is in the zone, at every place that the channel may have read."""
        places = self._history.places[user]
        certain, possible = True, False
        for sent in reversed(places[: bisect_right(places, execution.to_s, key=lambda place: place.sent_s)]):
            here = _both(_inside(report, sent.place), _within(sent.stamped_s, window_s, execution))
            certain, possible = certain and here[0], possible or here[1]
            if sent.visible_s < execution.from_s:
                return certain, possible  # It replaced the earlier places.
        return False, possible

    def _right_shelters(self, report: Report, result: Mapping[str, Any]) -> bool:
        if "shelters" not in result:
            return True
        listed = {shelter["name"] for shelter in result["shelters"]}
        inside = {shelter.name: _inside(report, shelter.location) for shelter in self._history.shelters}
        return (
            {name for name, (certain, _) in inside.items() if certain}
            <= listed
            <= {name for name, (_, possible) in inside.items() if possible}
        )

    def text(self, key: Key) -> str:
        user, interest, number, _ = key
        watch = self._history.watches[user, interest]
        what = f"report {number}"
        if number < len(self._reports):
            what += f" ({self._reports[number].report.emergency_type})"
        return f"{what} for {user} through {watch.channel}"


def channel_of(heard: Heard) -> str:
    return heard.result.channel.rpartition(".")[2]


def _inside(report: Report, place: Place) -> _Certainty:
    away_m = distance_m(report.center, place)
    return away_m <= report.radius_m - BORDER_M, away_m <= report.radius_m + BORDER_M


def _within(stamped_s: float, window_s: float, execution: _Execution) -> _Certainty:
    return (
        stamped_s > execution.clock_to_s - window_s + BORDER_S,
        stamped_s > execution.clock_from_s - window_s - BORDER_S,
    )


def _both(*parts: _Certainty) -> _Certainty:
    return all(certain for certain, _ in parts), all(possible for _, possible in parts)
