"""States what the simulation expects of a live hour, and with which error, before the live run (pre-registration).

The live system has other timings than the simulated one: a channel's periods begin when it was created, an execution
ends a little later than it was due, and the duration of a fetch varies. So the same scenario is simulated several
times, each with its own timings. The live run is one more such run, and all its figures together should lie within the
prediction intervals: separate intervals for each figure would fail for one of many sooner or later. A small tolerance
is added for effects that no simulation has: how a time is spelled in a result, and what is under way when the hour
ends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from tocsin.lab.engine.streams import Streams
from tocsin.lab.experiments.edge_caching_prototype.experiment import EXPERIMENT
from tocsin.lab.experiments.edge_caching_prototype.live.options import LiveCell
from tocsin.lab.experiments.statistics import estimate, student_t
from tocsin.lab.scenarios.city import CHANNELS
from tocsin.lab.scenarios.scenario import Scenario
from tocsin.lab.simulators.fast_broker import core_settings
from tocsin.lab.simulators.network_broker import Links, NetworkBrokerSim, simulate_scenario
from tocsin.lab.workloads.city_channels import CityResult, CityRun, find

CONFIDENCE: Final = 0.99
RUNS: Final = 20
# Times and links of the simulation, in seconds of the scenario. But live, all is on one machine: the cluster's work
# takes the time of a fetch (half of them longer than this), and not the network.
_USUAL: Final = {parameter.name: parameter.default for parameter in EXPERIMENT.parameters}
SUBSCRIBER_S: Final = float(_USUAL["subscriber_s"])
FETCH_S: Final = float(_USUAL["cluster_s"])
_LINKS: Final = Links.of_round_trips(SUBSCRIBER_S, 0.0)
# The sigma of a fetch's lognormal duration, as live brokers measured it (0.96 to 1.09).
SPREAD: Final = 1.0
# Absolute for the ratio, relative for the others.
TOLERANCE: Final = {"hit_ratio": 0.01, "found": 0.01, "miss_kb": 0.01, "fetch_kb": 0.01}


@dataclass(frozen=True, slots=True)
class StatedFigures:
    """The expected interval of a figure, with the mean of the simulations."""

    mean: float
    low: float
    high: float

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


def expect(
    scenario: Scenario, end_s: float, cells: Sequence[LiveCell], *, late_s: float, seed: int
) -> dict[LiveCell, dict[str, StatedFigures]]:
    """Returns the expected interval of each figure of every cell; executions are up to `late_s` late."""
    figures_by_cell: dict[LiveCell, list[Mapping[str, float]]] = {cell: [] for cell in cells}
    for number in range(RUNS):
        streams = Streams(seed).within("timing").within(str(number))
        run = time_channels(scenario, streams.of("channels"), late_s)
        results = run.list_results()
        for cell in cells:
            chance = partial(streams.of(f"fetches of {cell.name}").lognormal, math.log(FETCH_S), SPREAD)
            settings = core_settings(cell.to_caching_settings())
            simulator = simulate_scenario(scenario, results, settings, _LINKS, until_s=end_s, looks_up_s=chance)
            figures_by_cell[cell].append(_measure_figures(simulator))
    figures = len(cells) * len(TOLERANCE)
    factor = student_t(1 - (1 - CONFIDENCE) / figures, RUNS - 1) * math.sqrt(1 + 1 / RUNS)
    return {cell: _state_figures(runs, factor) for cell, runs in figures_by_cell.items()}


def time_channels(scenario: Scenario, stream: np.random.Generator, late_s: float) -> CityRun:
    """Runs the channels with a random phase within their first period, and a random delay of every execution."""
    phases_s = {channel: period_s * (1 - float(stream.random())) for channel, _, period_s in CHANNELS}
    run = find(scenario, phases_s=phases_s)
    channels = {number: channel for (channel, _), number in run.interests.items()}
    over_s: dict[tuple[str, float], float] = {}
    last_s: dict[str, float] = {}
    delayed: list[CityResult] = []
    for result in run.found:
        channel = channels[result.interest]
        if (channel, result.at_s) not in over_s:
            # A channel runs one execution at a time.
            at_s = max(result.at_s + float(stream.uniform(0, late_s)), last_s.get(channel, 0.0))
            over_s[channel, result.at_s] = last_s[channel] = at_s
        delayed.append(replace(result, at_s=over_s[channel, result.at_s]))
    run.found = sorted(delayed, key=lambda result: result.at_s)
    return run


def _measure_figures(simulator: NetworkBrokerSim) -> dict[str, float]:
    counts = simulator.broker.caches.counters
    return {**simulator.figures(), "alone_kb": (counts.arrived_bytes + counts.miss_bytes) / 1e3}


def _state_figures(runs: Sequence[Mapping[str, float]], far: float) -> dict[str, StatedFigures]:
    stated = {name: _interval([run[name] for run in runs], name, far) for name in TOLERANCE}
    # In the simulation, subscribers that are notified together ask at the same moment and share a fetch. Live they ask
    # moments apart, so some fetches are not shared: there is more to fetch, at most what all subscribers got that way.
    alone = _interval([run["alone_kb"] for run in runs], "fetch_kb", far)
    stated["fetch_kb"] = replace(stated["fetch_kb"], high=alone.high)
    return stated


def _interval(values: Sequence[float], name: str, far: float) -> StatedFigures:
    """Returns the mean, plus and minus `far` standard deviations and the tolerance."""
    mean = estimate(values).mean
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    half = far * math.sqrt(variance)
    half += TOLERANCE[name] * (1.0 if name == "hit_ratio" else mean)
    return StatedFigures(mean, max(0.0, mean - half), mean + half)
