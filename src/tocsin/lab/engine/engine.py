"""Runs simulations: a virtual clock, a heap of scheduled actions, and a trace of what happens.

Events run in the order of `(time, priority, sequence)`: at the same moment the lower priority first, and among equals
the one that was scheduled first. Nothing depends on chance or on the order of a hash table, so the same seed gives the
same run.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NewType, Protocol, TextIO

from tocsin.lab.engine.streams import Streams

_TRACE_FORMAT: Final = 1
_FOREVER: Final = math.inf

# [time, priority, sequence, action, arguments]. Lists compare by their first three items, and the third is unique;
# comparing lists makes the heap fast. Callers use it only as a handle.
Scheduled = NewType("Scheduled", list[Any])
_ACTION: Final = 3
_ARGUMENTS: Final = 4

Callback = Callable[..., object]


class RunTrace(Protocol):
    """Records the events of a run."""

    def note(self, at_s: float, what: str, fields: Mapping[str, Any]) -> None: ...


class TraceFile:
    """Writes one line of JSON per event. The same run writes the same bytes, so that two runs can be compared."""

    def __init__(self, out: TextIO, *, seed: int, about: Mapping[str, Any] | None = None) -> None:
        self._out = out
        self._line({"trace": _TRACE_FORMAT, "seed": seed, **(about or {})})

    def note(self, at_s: float, what: str, fields: Mapping[str, Any]) -> None:
        self._line({"at_s": at_s, "what": what, **fields})

    def _line(self, value: Mapping[str, Any]) -> None:
        self._out.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")


class SimulationEngine:
    """One run under virtual time.

    `now_s` begins at 0 and never goes back. An action may schedule further actions, now or later. An exception in an
    action ends the run, with a note of the moment and the seed.
    """

    __slots__ = ("_heap", "_sequence", "_trace", "events", "now_s", "seed", "streams")

    def __init__(self, seed: int, *, trace: RunTrace | None = None) -> None:
        self.seed = seed
        self.now_s = 0.0
        self.events = 0
        self.streams = Streams(seed)
        self._heap: list[Scheduled] = []
        self._sequence = 0
        self._trace = trace

    def at(self, time_s: float, action: Callback, *arguments: Any, priority: int = 0) -> Scheduled:
        """Schedules the action at this moment. Raises `ValueError` for a moment in the past or an infinite one."""
        if not self.now_s <= time_s < _FOREVER:
            raise ValueError(f"cannot schedule at {time_s} s: it is {self.now_s} s")
        self._sequence = sequence = self._sequence + 1
        entry = Scheduled([time_s, priority, sequence, action, arguments])
        heapq.heappush(self._heap, entry)
        return entry

    def after(self, delay_s: float, action: Callback, *arguments: Any, priority: int = 0) -> Scheduled:
        """Schedules the action after this delay."""
        return self.at(self.now_s + delay_s, action, *arguments, priority=priority)

    def every(self, period_s: float, action: Callback, *arguments: Any, priority: int = 0) -> None:
        """Runs the action at every multiple of the period, without drift, for as long as the run goes on."""
        if not 0 < period_s < _FOREVER:
            raise ValueError(f"period_s: must be > 0, got {period_s}")
        began_s = self.now_s

        def tick(number: int) -> None:
            self.at(began_s + (number + 1) * period_s, tick, number + 1, priority=priority)
            action(*arguments)

        self.at(began_s + period_s, tick, 1, priority=priority)

    def feed(self, events: Iterable[tuple[float, tuple[Any, ...]]], action: Callback, *, priority: int = 0) -> None:
        """Runs the action at each of these ordered moments, with these arguments. Only the next one is in memory."""
        self._feed(iter(events), action, priority)

    def cancel(self, scheduled: Scheduled) -> None:
        """Cancels the action. Does nothing if it has already run."""
        scheduled[_ACTION] = None
        scheduled[_ARGUMENTS] = ()

    def run(self, until_s: float = _FOREVER) -> None:
        """Runs everything that is due up to and including this moment; then the clock shows this moment."""
        heap, pop = self._heap, heapq.heappop
        events = 0
        try:
            while heap and heap[0][0] <= until_s:
                time_s, _, _, action, arguments = pop(heap)
                if action is None:
                    continue
                self.now_s = time_s
                events += 1
                action(*arguments)
        except Exception as error:
            error.add_note(f"at {self.now_s} s of the run with seed {self.seed}")
            raise
        finally:
            self.events += events
        if self.now_s < until_s < _FOREVER:
            self.now_s = until_s

    def note(self, what: str, **fields: Any) -> None:
        """Writes an event to the trace, if there is one."""
        if self._trace is not None:
            self._trace.note(self.now_s, what, fields)

    @property
    def is_traced(self) -> bool:
        """Whether there is a trace. Callers compute expensive notes only then."""
        return self._trace is not None

    def next_s(self) -> float | None:
        """Returns the time of the next event, or None."""
        while self._heap and self._heap[0][_ACTION] is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _feed(self, events: Iterator[tuple[float, tuple[Any, ...]]], action: Callback, priority: int) -> None:
        following = next(events, None)
        if following is None:
            return
        time_s, arguments = following

        def happen() -> None:
            self._feed(events, action, priority)
            action(*arguments)

        self.at(time_s, happen, priority=priority)
