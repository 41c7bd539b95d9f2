"""The city's people and their broker under virtual time: the driver plays a scenario to them as to live ones.

With constant round trips and no waiting: only twenty of these runs together say what one more may give. `bodies.town`
has links.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from tocsin.broker.core.actions import Action
from tocsin.broker.core.events import Event, FetchedTogether
from tocsin.lab.bodies.edge import Edge, RoundTrips, core_settings
from tocsin.lab.engine.engine import Engine
from tocsin.lab.experiments.edge_caching_prototype.live.cells import Cell
from tocsin.lab.scenarios.driver import VirtualClock, play
from tocsin.lab.scenarios.scenario import Act, LogIn, LogOut, Scenario, Subscribe, Unsubscribe
from tocsin.lab.workloads.city_channels import CityRun

_SPREAD: Final = 1.0
"""Of a fetch's time: the sigma of its lognormal, as live brokers measured it (0.96 to 1.09)."""

# When, for which interest, of which size.
Result = tuple[float, int, int]


def results(run: CityRun) -> list[Result]:
    """What the channels find, as a broker gets it."""
    return [(one.at_s, one.interest, one.size_bytes) for one in run.found]


class SimulatedTown(Edge):
    """A target of the driver. Results come at their own moments, between the steps.

    With a stream of chance, fetches take longer at one time than at another, as far as the core is told.
    """

    def __init__(
        self,
        cell: Cell,
        run: CityRun,
        found: Sequence[Result],
        engine: Engine,
        *,
        trips: RoundTrips,
        stream: np.random.Generator | None,
    ) -> None:
        super().__init__(core_settings(cell.caching()), len(run.interests), trips=trips)
        self._run = run
        self._stream = stream
        engine.feed(((at_s, (at_s, interest, size)) for at_s, interest, size in found), self._found)

    async def perform(self, act: Act, at_s: float) -> None:
        self._happen(at_s)
        run = self._run
        match act:
            case LogIn(name):
                self._logged_in(at_s, run.subscriber(name), -1, 0)
            case LogOut(name):
                self._logged_out(at_s, run.subscriber(name), -1, 0)
            case Subscribe(name, channel, parameters):
                self._subscribed(at_s, run.subscriber(name), run.interest(channel, parameters), 0)
            case Unsubscribe(name, channel, parameters):
                self._unsubscribed(at_s, run.subscriber(name), run.interest(channel, parameters), 0)
            case _:
                pass  # moves and publications are in what the channels find

    def finish(self, end_s: float) -> None:
        self._happen(end_s)
        self._pass(end_s)

    def _found(self, at_s: float, interest: int, size_bytes: int) -> None:
        self._happen(at_s)
        self._produced(at_s, -1, interest, size_bytes)

    def _step(self, event: Event, now_s: float) -> list[Action]:
        if isinstance(event, FetchedTogether) and self._stream is not None:
            times = self._stream.lognormal(0.0, _SPREAD, len(event.answers)).tolist()
            varied = (replace(one, took_s=one.took_s * much) for one, much in zip(event.answers, times, strict=True))
            event = FetchedTogether(tuple(varied))
        return super()._step(event, now_s)

    def measured(self) -> dict[str, float]:
        figures = self.broker.caches.figures
        return {
            "found": float(figures.arrived),
            "hit_ratio": figures.hit_ratio,
            "miss_kb": figures.miss_bytes / 1e3,
            "fetch_kb": (figures.arrived_bytes + figures.fetched_bytes) / 1e3,
            "alone_kb": (figures.arrived_bytes + figures.miss_bytes) / 1e3,
        }


async def simulate(
    made: Scenario,
    end_s: float,
    cell: Cell,
    run: CityRun,
    found: Sequence[Result],
    *,
    trips: RoundTrips,
    stream: np.random.Generator | None = None,
) -> SimulatedTown:
    """Have the driver play the scenario to a simulated broker."""
    engine = Engine(0)
    town = SimulatedTown(cell, run, found, engine, trips=trips, stream=stream)
    clock = VirtualClock(engine)
    await play(made, town, clock)
    await clock.until(end_s)
    town.finish(end_s)
    return town
