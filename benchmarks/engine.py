"""Measures the CPU of an event of the lab's engine, compared with a bare heap, and events per second of CPU.

python -m benchmarks.engine
"""

from __future__ import annotations

from typing import Final

from benchmarks.baselines.engine import bare_heap
from benchmarks.harness import Bench, compare
from tocsin.lab.engine.engine import SimulationEngine
from tocsin.lab.engine.network import LinkSettings, Network
from tocsin.lab.engine.streams import Streams

EVENTS: Final = 200_000
_ROUNDS: Final = 7
_LONG: Final = 100_000


def main() -> None:
    bench = Bench("engine")
    delays_s = Streams(1).of("delays").exponential(1.0, 10_007).tolist()
    for timers in (1_000, _LONG):
        found = compare(
            lambda timers=timers: bare_heap(timers, delays_s, EVENTS),  # type: ignore[misc]
            {
                "timers": lambda timers=timers: timed(timers, delays_s),  # type: ignore[misc]
                "messages": lambda timers=timers: messages(timers, delays_s),  # type: ignore[misc]
            },
            rounds=_ROUNDS,
            operations=EVENTS // 1_000,
        )
        for figure in found:
            bar = 3.0 if figure.name == "timers" else None
            bench.compared(f"1,000 {figure.name}, {timers:,} waiting", figure, bar=bar, baseline="bare heap")
            bench.reached(
                f"events per second: {figure.name}, {timers:,} waiting", 1_000 / figure.seconds, bar=None, unit="1/s"
            )
    bench.finish()


def timed(timers: int, delays_s: list[float]) -> None:
    """The baseline's work with the engine."""
    engine = SimulationEngine(1)
    left = EVENTS

    def happen(number: int) -> None:
        nonlocal left
        left -= 1
        if left >= timers:
            engine.after(delays_s[number % len(delays_s)], happen, number + 1)

    for number in range(timers):
        engine.at(delays_s[number % len(delays_s)], happen, number)
    engine.run()


def messages(places: int, delays_s: list[float]) -> None:
    """As many messages over the links of a network."""
    engine = SimulationEngine(1)
    network = Network(engine, lambda _source, _target: LinkSettings(0.01, 1e6))
    names = [str(number) for number in range(min(places, 1_000))]
    left = EVENTS

    def arrive(number: int) -> None:
        nonlocal left
        left -= 1
        if left >= places:
            size_bytes = 1_000 * delays_s[number % len(delays_s)]
            network.send("broker", names[number % len(names)], size_bytes, arrive, number + 1)

    for number in range(places):
        network.send("broker", names[number % len(names)], 1_000, arrive, number)
    engine.run()


if __name__ == "__main__":
    main()
