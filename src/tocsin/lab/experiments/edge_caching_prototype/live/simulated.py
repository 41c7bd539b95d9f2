"""The city's people and their broker under virtual time: the driver plays a scenario to them as to live ones.

With constant round trips and no waiting, as the hour that the committed report tells of was stated with, so that what
was stated can be computed again. `bodies.town` has links.
"""

from __future__ import annotations

from collections.abc import Sequence

from tocsin.lab.bodies.edge import Edge, RoundTrips, core_settings
from tocsin.lab.engine.engine import Engine
from tocsin.lab.experiments.edge_caching_prototype.live.cells import Cell
from tocsin.lab.scenarios.driver import VirtualClock, play
from tocsin.lab.scenarios.scenario import Act, LogIn, LogOut, Scenario, Subscribe, Unsubscribe
from tocsin.lab.workloads.city_channels import CityRun

# When, for which interest, of which size.
Result = tuple[float, int, int]


def results(run: CityRun) -> list[Result]:
    """What the channels find, as a broker gets it."""
    return [(one.at_s, one.interest, one.size_bytes) for one in run.found]


class SimulatedTown(Edge):
    """A target of the driver. Results come at their own moments, between the steps."""

    def __init__(self, cell: Cell, run: CityRun, found: Sequence[Result], engine: Engine, *, trips: RoundTrips) -> None:
        super().__init__(core_settings(cell.caching()), len(run.interests), trips=trips)
        self._run = run
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
) -> SimulatedTown:
    """Have the driver play the scenario to a simulated broker."""
    engine = Engine(0)
    town = SimulatedTown(cell, run, found, engine, trips=trips)
    clock = VirtualClock(engine)
    await play(made, town, clock)
    await clock.until(end_s)
    town.finish(end_s)
    return town
