"""Plays a scenario: the same steps to the live system and to the simulator.

Live and simulated figures are comparable only if both come from the same steps. The driver therefore knows neither
system: the target performs an act, and the clock decides what waiting means.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from tocsin.lab.engine.engine import SimulationEngine
from tocsin.lab.scenarios.scenario import Act, Scenario


class _ScenarioTarget(Protocol):
    """The system that a scenario is played to."""

    async def perform(self, act: Act, at_s: float) -> None:
        """Performs an act. A step begins when the previous step has been performed."""
        ...


class _Clock(Protocol):
    """The clock of the steps."""

    async def until(self, at_s: float) -> float:
        """Waits until this moment of the scenario, and returns by how much it was missed."""
        ...


class VirtualClock:
    """The engine's clock: it runs everything that is due before a step."""

    def __init__(self, engine: SimulationEngine) -> None:
        self._engine = engine

    async def until(self, at_s: float) -> float:
        self._engine.run(at_s)
        return 0.0


class WallClock:
    """Real time, accelerated by `speed`. Time and sleep are arguments, so that tests need neither."""

    def __init__(
        self, now_s: Callable[[], float], sleep: Callable[[float], Awaitable[object]], *, speed: float = 1.0
    ) -> None:
        if not speed > 0:
            raise ValueError(f"speed: must be > 0, got {speed}")
        self._now_s, self._sleep, self._speed = now_s, sleep, speed
        self._began_s: float | None = None

    async def until(self, at_s: float) -> float:
        if self._began_s is None:
            self._began_s = self._now_s()
        while (left_s := self._began_s + at_s / self._speed - self._now_s()) > 0:
            await self._sleep(left_s)
        return -left_s * self._speed


async def play(scenario: Scenario, target: _ScenarioTarget, clock: _Clock) -> float:
    """Plays all steps. Returns the largest delay of a step, in seconds of the scenario."""
    late_s = 0.0
    for step in scenario.steps:
        late_s = max(late_s, await clock.until(step.at_s))
        await target.perform(step.act, step.at_s)
    return late_s
