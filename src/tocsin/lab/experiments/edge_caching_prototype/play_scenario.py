"""Plays a saved scenario: to the simulated broker under virtual time, or to live brokers.

Both ways play the same file and return the same figures, so that a simulation can be compared with the live system.
A scenario may be written by hand, and a live run takes long. So every step is checked first, and an error names the
line and the possible values.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tocsin.lab.engine.engine import RunTrace
from tocsin.lab.experiments.edge_caching_prototype.live.options import LiveCell
from tocsin.lab.scenarios import scenario as acts
from tocsin.lab.scenarios.city import CHANNELS
from tocsin.lab.scenarios.scenario import PublishStep, Scenario, load
from tocsin.lab.simulators.fast_broker import core_settings
from tocsin.lab.simulators.network_broker import BROKER, CLUSTER, Links, simulate_scenario
from tocsin.lab.workloads.city_channels import find
from tocsin.wire.errors import InputError

# Figure, unit and description, of a simulated and of a live broker.
FIGURES: Final = (
    ("hit_ratio", "", "share of results that came from the cache"),
    ("results", "", "results that subscribers received"),
    ("latency_s", "s", "mean time from a request until the result is received"),
    ("miss_kb", "KB", "bytes that subscribers received after a fetch from the cluster"),
    ("fetch_kb", "KB", "all bytes from the cluster"),
    ("found", "", "results that arrived at the broker"),
    ("evicted", "", "results evicted to make space for others"),
    ("expired", "", "results whose time to live ended"),
)
# The time after the last step in which all results arrive: the longest period, and a reserve.
_AFTER_S: Final = max(period_s for _, _, period_s in CHANNELS) + 60.0
# Names that our own clients use, live and in the simulator.
_OWN_CLIENTS: Final = ("agency", "drill")
_PLACES: Final = (CLUSTER, BROKER)
_KINDS: Final = {channel: kinds.split() for channel, kinds, _ in CHANNELS}
# The parameters that a channel takes for each of its kinds: what to call them in messages, and their type.
_TAKES: Final[dict[str, tuple[tuple[str, type], ...]]] = {
    "type": (("a type", str),),
    "place": (("metres east", float), ("metres north", float)),
    "user": (("a subscriber", str),),
}
# The fields that a record needs, with their types.
_FEEDS: Final[dict[str, dict[str, type | tuple[type, ...]]]] = {
    "ReportFeed": {
        "emergencyType": str, "severity": int, "east_m": (int, float), "north_m": (int, float),
        "radius_m": (int, float), "message": str,
    },
    "ShelterFeed": {"name": str, "east_m": (int, float), "north_m": (int, float), "beds": int},
}  # fmt: skip
# Some months. Channels run through the span in seconds; a typo in a time would turn that into hours.
_MOST_S: Final = 1e7
_LINES: Final = "docs/lab.md shows a scenario line by line"


@dataclass(frozen=True, slots=True)
class PlayedScenario:
    """The figures of a broker with one policy and size."""

    cell: LiveCell
    figures: Mapping[str, float]


def load_city(path: Path) -> Scenario:
    """Loads a scenario for a city. `InputError` names the line that does not fit."""
    scenario = load(path)
    check_steps(scenario, path)
    return scenario


def simulate(
    scenario: Scenario, cells: Sequence[LiveCell], links: Links, trace: RunTrace | None = None
) -> Iterator[PlayedScenario]:
    """Plays the scenario to a simulated broker for each cell."""
    _check_names(scenario, _PLACES)
    results = find(scenario).list_results()
    for cell in cells:
        settings = core_settings(cell.to_caching_settings())
        simulator = simulate_scenario(
            scenario, results, settings, links, until_s=scenario.span_s() + _AFTER_S, trace=trace
        )
        yield PlayedScenario(cell, {"results": float(simulator.results), **simulator.figures()})


def live(
    scenario: Scenario, cells: Sequence[LiveCell], folder: Path, *, speed: float, say: Callable[[str], None]
) -> Iterator[PlayedScenario]:
    """Plays the scenario to live brokers, one for each cell, on their own cluster. The folder keeps their traces."""
    from tocsin.lab.experiments.edge_caching_prototype.live import hour_run, run_live, schema

    _check_names(scenario, _OWN_CLIENTS)
    try:
        schema.script(speed)
    except ValueError as error:
        raise InputError(str(error), hint="take a lower speed") from None
    traces = folder / "traces"
    traces.mkdir(parents=True, exist_ok=True)
    end_s = scenario.span_s() + _AFTER_S
    hours = asyncio.run(
        hour_run.run_hour(scenario, end_s, cells, speed, folder=folder / "servers", traces=traces, say=say)
    )
    for cell, hour in hours.items():
        yield PlayedScenario(cell, run_live.numbers(hour, len(cells)))


def _check_names(scenario: Scenario, reserved: Sequence[str]) -> None:
    people = {act.subscriber for step in scenario.steps if not isinstance(act := step.act, PublishStep)}
    for name in reserved:
        if name in people:
            raise InputError(f"{name} is a reserved name, and a subscriber has it", hint="give it another name")


def check_steps(scenario: Scenario, path: Path) -> None:
    """Checks all steps. `InputError` names the first line of the file that cannot be played, and how to repair it."""
    online: set[str] = set()
    subscriptions: set[tuple[str, str, tuple[str | float, ...]]] = set()
    for number, step in enumerate(scenario.steps, 2):
        try:
            _refuse(step.at_s > _MOST_S, f"at_s: must be at most {_MOST_S:g}, got {step.at_s:g}", _LINES)
            match step.act:
                case acts.LogInStep(name):
                    _refuse(name in online, f"{name} is logged in already", "log it out before")
                    online.add(name)
                case acts.LogOutStep(name):
                    _refuse(name not in online, f"{name} is not logged in", "log it in before")
                    online.discard(name)
                case acts.SubscribeStep(name, channel, parameters):
                    _check_channel(channel, parameters)
                    subscription = name, channel, parameters
                    _refuse(
                        subscription in subscriptions,
                        f"{name} subscribes to this already",
                        "leave one of both steps out",
                    )
                    subscriptions.add(subscription)
                case acts.UnsubscribeStep(name, channel, parameters):
                    subscription = name, channel, parameters
                    _refuse(
                        subscription not in subscriptions,
                        f"{name} does not subscribe to this",
                        "subscribe to it before",
                    )
                    subscriptions.discard(subscription)
                case acts.PublishStep(feed, record):
                    _check_record(feed, record)
                case _:
                    pass
        except InputError as error:
            raise InputError(f"{path}, line {number}: {error.message}", hint=error.hint) from None


def _refuse(wrong: bool, why: str, hint: str) -> None:
    if wrong:
        raise InputError(why, hint=hint)


def _check_channel(channel: str, parameters: tuple[str | float, ...]) -> None:
    kinds = _KINDS.get(channel)
    if kinds is None:
        raise InputError(f"no channel {channel}", hint=f"a city has: {', '.join(_KINDS)}")
    expected = [parameter for kind in kinds for parameter in _TAKES[kind]]
    _refuse(
        [isinstance(parameter, str) for parameter in parameters] != [type_ is str for _, type_ in expected],
        f"{channel} takes {', '.join(name for name, _ in expected)}",
        _LINES,
    )


def _check_record(feed: str, record: Any) -> None:
    fields = _FEEDS.get(feed)
    if fields is None:
        raise InputError(f"no feed {feed}", hint=f"a city has: {', '.join(_FEEDS)}")
    for name, kind in fields.items():
        value = record.get(name)
        fits = isinstance(value, kind) and not isinstance(value, bool)
        # NaN and infinity are not places.
        fits = fits and (isinstance(value, str) or abs(value) <= sys.float_info.max)
        _refuse(not fits, f"a record of {feed} needs {name}, got {value!r}", f"it has: {', '.join(fields)}")
