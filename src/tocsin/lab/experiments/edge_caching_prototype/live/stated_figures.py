"""What the simulation expects of a live hour, and with which error: stated before the hour is lived.

The live system keeps other moments than the simulated one: each channel begins its periods when it was created, an
execution is over a little later than it was due, and a fetch takes longer at one time than at another. So the same
scenario is simulated several times, each with moments of its own, and one more such run, the live one, should lie
within the prediction intervals of these with all its figures at once: intervals that each hold one figure alone would
be left by one of many sooner or later. To that comes a small tolerance for what no run has: how a time is spelled in a
result, and what is under way when the hour ends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from tocsin.lab.engine.streams import Streams
from tocsin.lab.experiments.edge_caching_prototype.experiment import EXPERIMENT
from tocsin.lab.experiments.edge_caching_prototype.live.cells import LiveCell
from tocsin.lab.experiments.statistics import estimate, student_t
from tocsin.lab.scenarios.city import CHANNELS
from tocsin.lab.scenarios.scenario import Scenario
from tocsin.lab.simulators.fast_broker import core_settings
from tocsin.lab.simulators.network_broker import Links, NetworkBrokerSim, play_town
from tocsin.lab.workloads.city_channels import CityResult, CityRun, find

CONFIDENCE: Final = 0.99
RUNS: Final = 20
# Times and links of the simulated half, in seconds of the scenario. But all is on one machine: of a fetch, it is the
# cluster's work that takes time, half of them longer than this, and not the way.
_USUAL: Final = {one.name: one.default for one in EXPERIMENT.parameters}
SUBSCRIBER_S: Final = float(_USUAL["subscriber_s"])
FETCH_S: Final = float(_USUAL["cluster_s"])
_LINKS: Final = Links.of_round_trips(SUBSCRIBER_S, 0.0)
# The sigma of a fetch's lognormal time, as live brokers measured it (0.96 to 1.09).
SPREAD: Final = 1.0
# Absolute for a share, relative for the others.
TOLERANCE: Final = {"hit_ratio": 0.01, "found": 0.01, "miss_kb": 0.01, "fetch_kb": 0.01}


@dataclass(frozen=True, slots=True)
class StatedFigures:
    """A figure from `low` to `high`; in between is where the simulations' mean is."""

    mean: float
    low: float
    high: float

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def to_json(self) -> dict[str, float]:
        return asdict(self)


def expect(
    made: Scenario,
    end_s: float,
    cells: Sequence[LiveCell],
    *,
    late_s: float,
    seed: int,
) -> dict[LiveCell, dict[str, StatedFigures]]:
    """Of every cell, what each figure will be. `late_s`: executions are over so many seconds late at most."""
    found: dict[LiveCell, list[Mapping[str, float]]] = {cell: [] for cell in cells}
    for number in range(RUNS):
        streams = Streams(seed).within("timing").within(str(number))
        run = timed(made, streams.of("channels"), late_s)
        results = run.made()
        for cell in cells:
            chance = partial(streams.of(f"fetches of {cell.name}").lognormal, math.log(FETCH_S), SPREAD)
            settings = core_settings(cell.caching())
            town = play_town(made, results, settings, _LINKS, until_s=end_s, looks_up_s=chance)
            found[cell].append(_measured(town))
    figures = len(cells) * len(TOLERANCE)
    far = student_t(1 - (1 - CONFIDENCE) / figures, RUNS - 1) * math.sqrt(1 + 1 / RUNS)
    return {cell: _stated(runs, far) for cell, runs in found.items()}


def timed(made: Scenario, stream: np.random.Generator, late_s: float) -> CityRun:
    """What the channels find where each begins some time within its first period, and every execution is late."""
    phases_s = {channel: period_s * (1 - float(stream.random())) for channel, _, period_s in CHANNELS}
    run = find(made, phases_s=phases_s)
    channels = {number: channel for (channel, _), number in run.interests.items()}
    over_s: dict[tuple[str, float], float] = {}
    last_s: dict[str, float] = {}
    later: list[CityResult] = []
    for one in run.found:
        channel = channels[one.interest]
        if (channel, one.at_s) not in over_s:
            # Of one channel one execution at a time.
            at_s = max(one.at_s + float(stream.uniform(0, late_s)), last_s.get(channel, 0.0))
            over_s[channel, one.at_s] = last_s[channel] = at_s
        later.append(replace(one, at_s=over_s[channel, one.at_s]))
    run.found = sorted(later, key=lambda one: one.at_s)
    return run


def _measured(town: NetworkBrokerSim) -> dict[str, float]:
    figures = town.broker.caches.figures
    return {
        "found": float(figures.arrived),
        "hit_ratio": figures.hit_ratio,
        "miss_kb": figures.miss_bytes / 1e3,
        "fetch_kb": (figures.arrived_bytes + figures.fetched_bytes) / 1e3,
        "alone_kb": (figures.arrived_bytes + figures.miss_bytes) / 1e3,
    }


def _stated(runs: Sequence[Mapping[str, float]], far: float) -> dict[str, StatedFigures]:
    told = {name: _interval([run[name] for run in runs], name, far) for name in TOLERANCE}
    # Here those who are told together ask at the same moment and share a fetch of what they lack. Live they ask moments
    # apart: some share it, some do not, so there is more to fetch, at most what everybody got that way.
    alone = _interval([run["alone_kb"] for run in runs], "fetch_kb", far)
    told["fetch_kb"] = replace(told["fetch_kb"], high=alone.high)
    return told


def _interval(values: Sequence[float], name: str, far: float) -> StatedFigures:
    """The mean, so many standard deviations and the tolerance."""
    mean = estimate(values).mean
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    half = far * math.sqrt(variance)
    half += TOLERANCE[name] * (1.0 if name == "hit_ratio" else mean)
    return StatedFigures(mean, max(0.0, mean - half), mean + half)


def parse_expected(said: Mapping[str, Any]) -> dict[str, StatedFigures]:
    """What was stated, read back."""
    return {name: StatedFigures(**one) for name, one in said.items()}
