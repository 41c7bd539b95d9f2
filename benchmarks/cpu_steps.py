"""Measures the CPU time of processes in steps, beyond their usual use, so that a neighbour can burn the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import psutil

from benchmarks.busy import STEP_S


class CpuMeter:
    """The CPU time of these processes, which may end; new ones are not seen."""

    def __init__(self, processes: Iterable[psutil.Process]) -> None:
        self._used_s = dict.fromkeys(processes, 0.0)

    def used_s(self) -> float:
        for process in self._used_s:
            with suppress(psutil.NoSuchProcess):
                used = process.cpu_times()
                self._used_s[process] = used.user + used.system
        return sum(self._used_s.values())


async def steps_used(used_s: Callable[[], float], seconds: float) -> list[float]:
    """Returns how many cores were used in each step of STEP_S."""
    clock = asyncio.get_running_loop().time
    begun_s, at_s, before_s = clock(), clock(), used_s()
    steps: list[float] = []
    for step in range(1, round(seconds / STEP_S) + 1):
        await asyncio.sleep(max(0.0, begun_s + step * STEP_S - clock()))
        now_s, now_used_s = clock(), used_s()
        steps.append((now_used_s - before_s) / max(now_s - at_s, STEP_S / 10))
        at_s, before_s = now_s, now_used_s
    return steps


def extra_steps(steps: Sequence[float], usual: float) -> list[float]:
    """What each step used beyond the usual. A step that used less is set off against those that follow, so that the sum
    of all is the difference of the sums, however unevenly the usual is spread."""
    extra: list[float] = []
    owed = 0.0
    for used in steps:
        owed += used - usual
        extra.append(max(0.0, owed))
        owed -= extra[-1]
    return extra


def is_flat(used: Sequence[float], within: float) -> bool:
    """Whether the last three stretches used the same, but for this part of it."""
    last = used[-3:]
    return len(last) == 3 and max(last) <= (1 + within) * min(last)
