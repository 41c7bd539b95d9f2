"""Refuses the callers whose earlier work still harms the engine, or did so a short time ago.

A task that cannot be stopped keeps its slot, and only a replacement of the engine ends it, which stops everybody. So
its caller gets no more work while such a task runs, and waits after a replacement.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from math import ceil
from typing import Final

from tocsin.wire.errors import LimitError

STUCK_RETRY_AFTER_S: Final = 30
AFTER_REPLACEMENT_S: Final = 600.0
"""How long a caller waits whose tasks could not be stopped, when the engine was replaced."""
_FIRST_WAIT_S: Final = 10.0
_LONGEST_WAIT_S: Final = 600.0
_ASKERS: Final = 10_000


class RefusedAskers:
    """Thread-safe. A caller is a token, or an address if it has none."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._stuck: dict[str, str] = {}  # by job group: the caller
        self._suspects: frozenset[str] = frozenset()  # job groups that the last look has seen
        # By caller: the time until which it is refused, the last wait, and the reason.
        self._waits: dict[str, tuple[float, float, str]] = {}

    def check(self, asker: str) -> None:
        """Raises LimitError with the time to wait if the caller is refused now."""
        with self._lock:
            is_stuck = asker in self._stuck.values()
            until_s, _, reason = self._waits.get(asker, (0.0, 0.0, ""))
        wait_s = until_s - self._now_s()
        if is_stuck:
            raise _refusal(f"an earlier statement of {asker} could not be stopped and still runs", STUCK_RETRY_AFTER_S)
        if wait_s > 0:
            raise _refusal(f"{reason}; {asker} has to wait", ceil(wait_s))

    def see_ended_jobs(self, askers: Mapping[str, str]) -> None:
        """Takes the job groups that are over and still have tasks, with their callers. Tasks may take a moment to end,
        so a group counts when it is seen for the second time."""
        with self._lock:
            known = self._suspects | self._stuck.keys()
            self._stuck = {group: asker for group, asker in askers.items() if group in known and asker}
            self._suspects = frozenset(askers)

    def add_stuck(self, group: str, asker: str) -> None:
        with self._lock:
            self._stuck[group] = asker

    def engine_replaced(self, askers: Iterable[str] = ()) -> None:
        """Lets the callers wait whose tasks or threads (`askers`) ended with the engine."""
        with self._lock:
            for asker in {*self._stuck.values(), *askers}:
                reason = "the engine was replaced because statements could not be stopped"
                self._wait(asker, AFTER_REPLACEMENT_S, reason)
            self._stuck = {}

    def memory_taken(self, asker: str) -> None:
        """Lets a caller wait whose statement was stopped for its memory; longer each time."""
        with self._lock:
            until_s, last_s, _ = self._waits.get(asker, (0.0, 0.0, ""))
            is_again = self._now_s() < until_s + _LONGEST_WAIT_S
            wait_s = min(_LONGEST_WAIT_S, 2 * last_s) if is_again and last_s else _FIRST_WAIT_S
            self._wait(asker, wait_s, "an earlier statement was stopped because it took too much memory")

    def _wait(self, asker: str, wait_s: float, reason: str) -> None:
        now_s = self._now_s()
        self._waits.pop(asker, None)
        self._waits[asker] = (now_s + wait_s, wait_s, reason)
        while len(self._waits) > _ASKERS:
            del self._waits[next(iter(self._waits))]


def _refusal(message: str, retry_after_s: int) -> LimitError:
    hint = "try again when the time in Retry-After is over"
    return LimitError(message, status=429, hint=hint, retry=True, retry_after_s=retry_after_s)
