"""Was anything lost? Found from what was sent and what came, and from nothing that the system counts itself.

`History` is what the people of the demo did and heard, each with its moment; `judge` says who had to be told of what,
who might have been, and who was. What is known of a channel is what channels.sql says. Where a moment or a border
leaves it open whether somebody is told, they may be and need not.
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

BORDER_M: Final = 1.0  # so near to the border of a zone it is open on which side somebody is
BORDER_S: Final = 0.05  # and so near to the end of a window
LATE_S: Final = 30.0  # a channel that has not run so long after a report has lost it
SEEN_S: Final = 60.0  # channels at once tell users who were seen within so many seconds


@dataclass(frozen=True, slots=True)
class Rule:
    """What a channel is asked with, and how far it looks back; None: at every new report, once."""

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
    """`visible_s`: when queries saw it."""

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
    """Somebody's subscription, asked for and answered at these moments."""

    user: str
    channel: str
    rule: Rule
    given: Mapping[str, Any]
    asked_s: float
    answered_s: float


@dataclass(frozen=True, slots=True)
class Heard:
    """`online_since_s`: since when they had been online when they heard it. `live`: they were when it was sent."""

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
    """Everything sent and heard. Each report has the next number, and is sent when the one before is acknowledged; so
    is each place of one user."""

    def __init__(self, shelters: Iterable[Shelter] = ()) -> None:
        self.shelters = list(shelters)
        self.reports: list[SentReport] = []
        self.places: dict[str, list[SentPlace]] = defaultdict(list)
        self.watches: dict[tuple[str, int], Watch] = {}
        self.heard: list[Heard] = []
        self.trouble: list[str] = []

    def report(self, report: Report, sent_s: float) -> SentReport:
        """To be called before it is sent."""
        self.reports.append(SentReport(len(self.reports), report, sent_s))
        return self.reports[-1]

    def place(self, user: str, place: Place, stamped_s: float, sent_s: float) -> SentPlace:
        """To be called before it is sent."""
        self.places[user].append(SentPlace(place, stamped_s, sent_s))
        return self.places[user][-1]

    def subscribed(self, user: str, made: Subscription, asked_s: float, answered_s: float) -> None:
        channel = made.channel.rpartition(".")[2]
        rule = RULES[channel]
        given = dict(zip(rule.parameters, made.parameters, strict=True))
        self.watches[user, made.interest] = Watch(user, channel, rule, given, asked_s, answered_s)

    def told(self, user: str, told: Event, at_s: float, online_since_s: float = math.inf) -> None:
        if not isinstance(told, Result):
            self.trouble.append(f"{user} was told: {told}")
            return
        number = int(told.result["report"]["number"])
        live = number < len(self.reports) and online_since_s < self.reports[number].sent_s
        self.heard.append(Heard(user, told, at_s, online_since_s, live))


# ---------------------------------------------------------------- what should have

# Who, by which interest, of which report; and by which execution, where one report may be told by several.
Key = tuple[str, int, int, float | None]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`due` had to be told, and `lost` of them were not. `wrong` should not have been told, or not so, or not twice.

    `again`: what came twice under the same name, as it may after a connection broke.
    """

    due: int
    lost: Sequence[str]
    wrong: Sequence[str]
    again: int

    @property
    def good(self) -> bool:
        return not self.lost and not self.wrong


def judge(history: History) -> Verdict:
    judging = _Judge(history)
    told: set[Key] = set()
    wrong, again = list(history.trouble), 0
    named: set[tuple[str, int, Cursor]] = set()
    for heard in history.heard:
        one = heard.result
        name = (heard.user, one.interest, one.cursor)
        if name in named:
            again += 1
            continue
        named.add(name)
        watch = history.watches.get((heard.user, one.interest))
        if watch is None or watch.channel != channel_of(heard):
            wrong.append(f"{heard.user} was told by {one.channel}, and had not subscribed to that")
            continue
        key = (heard.user, one.interest, heard.number, None if watch.rule.window_s is None else heard.executed_s)
        if key in told:
            wrong.append(f"{judging.text(key)}: told twice")
        elif not judging.may_hear(watch, heard):
            wrong.append(f"{judging.text(key)}: told, and should not have been")
        told.add(key)
    due = set(judging.due())
    lost = sorted(due - told, key=lambda key: (key[2], key[0], key[1]))
    return Verdict(len(due), [*map(judging.text, lost), *judging.silent()], wrong, again)


@dataclass(frozen=True, slots=True)
class _Look:
    """A channel's look at its datasets, somewhere between two moments; its own clock stood between the other two."""

    from_s: float
    to_s: float
    clock_from_s: float
    clock_to_s: float


# Whether something surely holds, and whether it may hold.
_Sure = tuple[bool, bool]
_NO: Final[_Sure] = (False, False)


class _Judge:
    def __init__(self, history: History) -> None:
        self._history = history
        self._reports = history.reports
        # Reports are matched in the order in which they were sent. Whoever hears of one through a channel at once shows
        # that those before it are matched, too: by then, if not before.
        self._matched_s: dict[str, list[float]] = defaultdict(lambda: [math.inf] * len(self._reports))
        # Of a channel with a period: the moments of its executions, and when somebody first heard of each.
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

    # ------------------------------------------------------------ what must be told, and what may

    def due(self) -> Iterator[Key]:
        for (user, interest), watch in self._history.watches.items():
            if watch.rule.window_s is None:
                for sent in self._reports:
                    if self._tells(watch, sent, self._match_of(watch, sent))[0]:
                        yield user, interest, sent.number, None
                continue
            for executed_s in self._executions[watch.channel]:
                look = self._execution(watch, executed_s)
                for sent in self._reports:
                    if sent.visible_s <= executed_s and self._tells(watch, sent, look)[0]:
                        yield user, interest, sent.number, executed_s

    def may_hear(self, watch: Watch, heard: Heard) -> bool:
        if heard.number >= len(self._reports):
            return False
        sent = self._reports[heard.number]
        at_once = watch.rule.window_s is None
        look = self._match_of(watch, sent) if at_once else self._execution(watch, heard.executed_s)
        return self._tells(watch, sent, look)[1] and self._right_shelters(sent.report, heard.result.result)

    def silent(self) -> Iterator[str]:
        """Channels with a period of which no execution is known at all, although there was time for some."""
        seen = set()
        for watch in self._history.watches.values():
            window_s = watch.rule.window_s
            if window_s is None or watch.channel in seen or self._executions[watch.channel]:
                continue
            after = [one for one in self._reports if one.sent_s > watch.answered_s]
            if after and after[-1].sent_s - after[0].sent_s > window_s + LATE_S:
                seen.add(watch.channel)
                yield f"{watch.channel}: has told nobody anything"

    def _match_of(self, watch: Watch, sent: SentReport) -> _Look:
        matched_s = self._matched_s[watch.channel][sent.number]
        to_s = matched_s if matched_s < math.inf else sent.sent_s + LATE_S
        return _Look(sent.sent_s, to_s, sent.sent_s, to_s)

    def _execution(self, watch: Watch, executed_s: float) -> _Look:
        # However late it began, its clock stood at the moment in which it was due.
        return _Look(executed_s, self._executions[watch.channel][executed_s], executed_s, executed_s)

    def _tells(self, watch: Watch, sent: SentReport, look: _Look) -> _Sure:
        report, given = sent.report, watch.given
        if given.get("type", report.emergency_type) != report.emergency_type:
            return _NO
        known = (watch.answered_s <= look.from_s, watch.asked_s <= look.to_s)
        there = (sent.visible_s < math.inf, sent.sent_s <= look.to_s)
        recent = _within(report.timestamp.timestamp(), watch.rule.window_s or math.inf, look)
        sure = _both(known, there, recent)
        if sure != _NO and "latitude" in given:
            sure = _both(sure, _inside(report, Place(given["latitude"], given["longitude"])))
        if sure != _NO and "user" in given:
            sure = _both(sure, self._near(given["user"], report, look, watch.rule.window_s or SEEN_S))
        return sure

    def _near(self, user: str, report: Report, look: _Look, window_s: float) -> _Sure:
        """Whether the user is in the zone, wherever the channel may have seen them."""
        places = self._history.places[user]
        surely, maybe = True, False
        for one in reversed(places[: bisect_right(places, look.to_s, key=lambda each: each.sent_s)]):
            here = _both(_inside(report, one.place), _within(one.stamped_s, window_s, look))
            surely, maybe = surely and here[0], maybe or here[1]
            if one.visible_s < look.from_s:
                return surely, maybe  # It replaced those before it.
        return False, maybe

    def _right_shelters(self, report: Report, result: Mapping[str, Any]) -> bool:
        if "shelters" not in result:
            return True
        told = {one["name"] for one in result["shelters"]}
        inside = {one.name: _inside(report, one.location) for one in self._history.shelters}
        return (
            {name for name, (surely, _) in inside.items() if surely}
            <= told
            <= {name for name, (_, maybe) in inside.items() if maybe}
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


def _inside(report: Report, place: Place) -> _Sure:
    away_m = distance_m(report.center, place)
    return away_m <= report.radius_m - BORDER_M, away_m <= report.radius_m + BORDER_M


def _within(stamped_s: float, window_s: float, look: _Look) -> _Sure:
    return (
        stamped_s > look.clock_to_s - window_s + BORDER_S,
        stamped_s > look.clock_from_s - window_s - BORDER_S,
    )


def _both(*sure: _Sure) -> _Sure:
    return all(surely for surely, _ in sure), all(maybe for _, maybe in sure)
