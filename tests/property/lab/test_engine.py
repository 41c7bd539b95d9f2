"""The event engine beside the plainest one there is: a list that is sorted again before every event."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tocsin.lab.engine.engine import SimulationEngine
from tocsin.lab.engine.streams import Streams

TIMES = st.integers(min_value=0, max_value=5).map(float)
NAMES = st.text(max_size=8)


@st.composite
def wishes(draw: st.DrawFn) -> list[tuple[float, int, list[tuple[float, int]], bool]]:
    """(time, priority, what it schedules when it happens: (delay, priority), whether it is cancelled at once)."""
    children = st.lists(st.tuples(TIMES, st.integers(-2, 2)), max_size=3)
    return draw(st.lists(st.tuples(TIMES, st.integers(-2, 2), children, st.booleans()), max_size=12))


def engine_order(made: list[Any]) -> list[Any]:
    engine = SimulationEngine(0)
    happened: list[Any] = []

    def happen(name: str, children: list[tuple[float, int]]) -> None:
        happened.append((engine.now_s, name))
        for number, (delay_s, priority) in enumerate(children):
            engine.after(delay_s, happen, f"{name}.{number}", [], priority=priority)

    for number, (time_s, priority, children, cancelled) in enumerate(made):
        scheduled = engine.at(time_s, happen, str(number), children, priority=priority)
        if cancelled:
            engine.cancel(scheduled)
    engine.run()
    return happened


def sorted_order(made: list[Any]) -> list[Any]:
    waiting = []
    sequence = 0
    for number, (time_s, priority, children, cancelled) in enumerate(made):
        sequence += 1
        if not cancelled:
            waiting.append((time_s, priority, sequence, str(number), children))
    happened = []
    while waiting:
        waiting.sort(key=lambda one: one[:3])
        now_s, _, _, name, children = waiting.pop(0)
        happened.append((now_s, name))
        for number, (delay_s, priority) in enumerate(children):
            sequence += 1
            waiting.append((now_s + delay_s, priority, sequence, f"{name}.{number}", []))
    return happened


@given(wishes())
def test_events_happen_by_time_then_priority_then_sequence(made: list[Any]) -> None:
    assert engine_order(made) == sorted_order(made)


@given(wishes(), st.lists(TIMES, max_size=5).map(sorted))
def test_a_run_in_pieces_is_the_same_run(made: list[Any], stops: list[float]) -> None:
    engine = SimulationEngine(0)
    happened: list[Any] = []
    for number, (time_s, priority, _, _) in enumerate(made):
        engine.at(time_s, lambda n=number: happened.append((engine.now_s, n)), priority=priority)
    for stop_s in stops:
        engine.run(stop_s)
        assert engine.now_s == stop_s
        assert all(time_s <= stop_s for time_s, _ in happened)
    engine.run()
    whole = sorted((time_s, priority, number) for number, (time_s, priority, _, _) in enumerate(made))
    assert happened == [(time_s, number) for time_s, _, number in whole]


@given(st.integers(0, 2**64), st.lists(NAMES, unique=True, min_size=1), NAMES)
def test_a_new_component_never_disturbs_the_chance_of_another(seed: int, names: list[str], new: str) -> None:
    assume(f"{new}!" not in names)
    alone = {name: Streams(seed).of(name).random(3).tolist() for name in names}
    together = Streams(seed)
    together.of(new + "!").random(7)
    drawn: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(3):
        for name in names:
            drawn[name].append(float(together.of(name).random()))
            together.within(new).of(name).random()
    assert drawn == alone


@given(st.integers(0, 2**32), st.lists(st.lists(NAMES, min_size=1, max_size=3).map(tuple), unique=True, min_size=2))
def test_every_component_has_chance_of_its_own(seed: int, paths: list[tuple[str, ...]]) -> None:
    def first(path: tuple[str, ...]) -> float:
        streams = Streams(seed)
        for part in path[:-1]:
            streams = streams.within(part)
        return float(streams.of(path[-1]).random())

    assert len({first(path) for path in paths}) == len(paths)


def test_streams_are_independent() -> None:
    drawn = np.array([Streams(1).of(f"component-{number}").standard_normal(4_000) for number in range(20)])
    correlations = np.corrcoef(drawn)[np.triu_indices(20, 1)]
    # 190 pairs with a standard error of 1/√4000 each: five of it is never reached by chance.
    assert np.abs(correlations).max() < 5 / np.sqrt(4_000)


@pytest.mark.parametrize("time_s", [0.5, float("nan"), float("inf"), -1.0])
def test_nothing_can_be_scheduled_in_the_past_or_never(time_s: float) -> None:
    engine = SimulationEngine(0)
    engine.run(1.0)
    with pytest.raises(ValueError, match="cannot schedule"):
        engine.at(time_s, list)
