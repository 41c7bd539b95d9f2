"""Computes the results of a city's channels: matches a scenario's publications with its subscriptions.

Each channel of Table III runs periodically and finds, for every subscribed interest, the matching reports since its
last run: of a type, with a zone around a place, or with a zone around the last known position of a user. A match is a
result: the report, and for some channels the shelters inside its zone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tocsin.lab.scenarios import scenario as acts
from tocsin.lab.scenarios.city import CHANNELS, CityInterest
from tocsin.lab.scenarios.scenario import Scenario

# What a broker keeps beside a result: its cursor and its time, in JSON.
_ENVELOPE_BYTES: Final = 85
_PERIOD_S: Final = {channel: period_s for channel, _, period_s in CHANNELS}
_KINDS: Final = {channel: kinds.split() for channel, kinds, _ in CHANNELS}


@dataclass(frozen=True, slots=True)
class CityResult:
    """A result of an interest at a moment."""

    at_s: float
    interest: int
    value: Mapping[str, Any]

    @property
    def size_bytes(self) -> int:
        """The size of the result in a broker."""
        return _ENVELOPE_BYTES + len(json.dumps(self.value, ensure_ascii=False, separators=(",", ":")).encode())


@dataclass(slots=True)
class CityRun:
    """The outcome: interests and subscribers are numbered in the order of their appearance."""

    interests: dict[CityInterest, int] = field(default_factory=dict)
    subscribers: dict[str, int] = field(default_factory=dict)
    found: list[CityResult] = field(default_factory=list)

    def interest(self, channel: str, parameters: tuple[str | float, ...]) -> int:
        return self.interests.setdefault((channel, parameters), len(self.interests))

    def list_results(self) -> list[tuple[float, CityInterest, int]]:
        """Returns the time, the interest by name and the size of each result."""
        names = list(self.interests)
        return [(result.at_s, names[result.interest], result.size_bytes) for result in self.found]

    def subscriber(self, name: str) -> int:
        return self.subscribers.setdefault(name, len(self.subscribers))


def find(scenario: Scenario, *, phases_s: Mapping[str, float] | None = None) -> CityRun:
    """Returns all results of a scenario, in order of time. `phases_s` is when each channel runs first, within its first
    period; the default is its end."""
    run = CityRun()
    places: dict[str, tuple[float, float]] = {}
    shelters: list[Mapping[str, Any]] = []
    reports: list[tuple[float, Mapping[str, Any]]] = []
    subscriber_counts: dict[int, int] = {}
    due_s = {**_PERIOD_S, **(phases_s or {})}
    end_s = scenario.span_s() + max(_PERIOD_S.values())
    steps = iter((*((step.at_s, step.act) for step in scenario.steps), (end_s, None)))
    for at_s, act in steps:
        while (channel := min(due_s, key=lambda one: due_s[one])) and due_s[channel] <= at_s:
            now_s = due_s[channel]
            recent = [report for made_s, report in reports if now_s - _PERIOD_S[channel] < made_s <= now_s]
            if recent:
                run.found += _matches(
                    run, channel, recent, now_s, held=subscriber_counts, places=places, shelters=shelters
                )
            due_s[channel] = now_s + _PERIOD_S[channel]
        match act:
            case acts.MoveStep():
                places[act.subscriber] = (act.east_m, act.north_m)
            case acts.SubscribeStep():
                number = run.interest(act.channel, act.parameters)
                subscriber_counts[number] = subscriber_counts.get(number, 0) + 1
                run.subscriber(act.subscriber)
            case acts.UnsubscribeStep():
                subscriber_counts[run.interest(act.channel, act.parameters)] -= 1
            case acts.LogInStep() | acts.LogOutStep():
                run.subscriber(act.subscriber)
            case acts.PublishStep() if act.feed == "ReportFeed":
                reports.append((at_s, act.record))
                reports = [
                    timed_report for timed_report in reports if timed_report[0] > at_s - 2 * max(_PERIOD_S.values())
                ]
            case acts.PublishStep():
                shelters.append(act.record)
            case _:
                pass
    return run


def _matches(
    run: CityRun,
    channel: str,
    recent: list[Mapping[str, Any]],
    now_s: float,
    *,
    held: Mapping[int, int],
    places: Mapping[str, tuple[float, float]],
    shelters: list[Mapping[str, Any]],
) -> Iterator[CityResult]:
    for (interest_channel, parameters), number in run.interests.items():
        if interest_channel != channel or not held.get(number):
            continue
        for report in recent:
            if _is_match(channel, parameters, report, places):
                value: dict[str, Any] = {"report": dict(report)}
                if channel.endswith("WithShelters"):
                    value["shelters"] = [
                        dict(shelter)
                        for shelter in shelters
                        if _within(report, (shelter["east_m"], shelter["north_m"]))
                    ]
                yield CityResult(now_s, number, value)


def _is_match(
    channel: str,
    parameters: tuple[str | float, ...],
    report: Mapping[str, Any],
    places: Mapping[str, tuple[float, float]],
) -> bool:
    remaining = list(parameters)
    for kind in _KINDS[channel]:
        if kind == "type":
            if report["emergencyType"] != remaining.pop(0):
                return False
        elif kind == "place":
            east_m, north_m = float(remaining.pop(0)), float(remaining.pop(0))
            if not _within(report, (east_m, north_m)):
                return False
        else:
            place = places.get(str(remaining.pop(0)))
            if place is None or not _within(report, place):
                return False
    return True


def _within(report: Mapping[str, Any], place: tuple[float, float]) -> bool:
    return math.dist((report["east_m"], report["north_m"]), place) <= float(report["radius_m"])
