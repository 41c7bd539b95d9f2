"""Plays a saved scenario: to the simulated broker under virtual time, or to live brokers.

Both ways play the same file and return the same figures, so that a simulation can be compared with the live system.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tocsin.lab.engine.trace import RunTrace
from tocsin.lab.experiments.edge_caching_prototype.live.options import LiveCell
from tocsin.lab.scenarios.city import CHANNELS
from tocsin.lab.scenarios.scenario import PublishStep, Scenario, load
from tocsin.lab.scenarios.validation import check
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


@dataclass(frozen=True, slots=True)
class PlayedScenario:
    """The figures of a broker with one policy and size."""

    cell: LiveCell
    figures: Mapping[str, float]


def load_city(path: Path) -> Scenario:
    """Loads a scenario for a city. `InputError` names the line that does not fit."""
    scenario = load(path)
    check(scenario, path)
    return scenario


def simulate(
    scenario: Scenario, cells: Sequence[LiveCell], links: Links, trace: RunTrace | None = None
) -> Iterator[PlayedScenario]:
    """Plays the scenario to a simulated broker for each cell."""
    _check_names(scenario, _PLACES)
    results = find(scenario).made()
    for cell in cells:
        settings = core_settings(cell.caching())
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
