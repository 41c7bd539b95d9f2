"""Decides when to replace the engine: a state machine that takes observations and returns actions.

It has no thread, no clock and no JVM; `watchdog_thread` feeds it events and performs its actions. That makes every
decision testable with plain numbers.

    up ── died, silent, or exhausted by unstoppable work ─▶ starting ─▶ up
                          too many replacements ─▶ waiting (back-off) ─▶ starting
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, TypeAlias

from tocsin.rules.backoff import BackOff


@dataclass(frozen=True, slots=True)
class WatchdogLimits:
    ping_timeout_s: float
    """Replaces an engine that has not answered for this long."""
    lost_limit: int
    """Replaces the engine when this many callers and tasks cannot be stopped, because nothing else frees their threads.
    While there are threads left, that happens once within `window_s`, and it does not count among `replacements`. An
    engine with too few threads left is replaced at once, and counts. A caller with such work is refused for a while
    (`RefusedAskers`), so one alone cannot have the engine replaced again."""
    ping_period_s: float = 2.0
    silent_s: float = 5.0
    """Gives no new work to an engine that has not answered for this long."""
    stuck_s: float = 30.0
    """A task that has not stopped this long after its cancellation never will."""
    replacements: int = 3
    """After this many replacements of failed engines within `window_s`, the next one waits (back-off)."""
    window_s: float = 600.0
    first_wait_s: float = 60.0
    longest_wait_s: float = 600.0
    paused_s: float = 5.0
    """If no event came for this long, this process itself was suspended, and the engine's silence says nothing."""


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class WatchdogTick:
    """The state of the engine at a periodic check. `has_ended`: its process is gone. `lost`: callers with threads that
    were given up and have not ended. `is_exhausted`: too few threads are left."""

    has_ended: bool = False
    lost: int = 0
    is_exhausted: bool = False


@dataclass(frozen=True, slots=True)
class PingAnswered:
    """The engine answered. `is_stopped`: Spark's context has ended in a process that lives on. `stuck`: running tasks
    of jobs that are over. `slots`: the number of task slots, if known."""

    is_stopped: bool = False
    stuck: int = 0
    slots: int | None = None


@dataclass(frozen=True, slots=True)
class PingFailed:
    pass


@dataclass(frozen=True, slots=True)
class ReplacementRequested:
    """Work needs an engine without leftovers of other work."""

    reason: str


@dataclass(frozen=True, slots=True)
class StartSucceeded:
    pass


@dataclass(frozen=True, slots=True)
class StartFailed:
    reason: str


WatchdogEvent: TypeAlias = (
    WatchdogTick | PingAnswered | PingFailed | ReplacementRequested | StartSucceeded | StartFailed
)

# ---------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class SendPing:
    """The answer is PingAnswered, PingFailed, or nothing at all."""


@dataclass(frozen=True, slots=True)
class KillEngine:
    """`is_overfull`: work that could not be stopped is the reason, and its callers have to wait."""

    reason: str
    is_overfull: bool = False


@dataclass(frozen=True, slots=True)
class StartEngine:
    """The answer is StartSucceeded or StartFailed."""


WatchdogAction: TypeAlias = SendPing | KillEngine | StartEngine

State: TypeAlias = Literal["up", "starting", "waiting"]


class Watchdog:
    """Starts in the state "up". `replacements` counts the engines that replaced others."""

    def __init__(self, limits: WatchdogLimits, now_s: float, chance: Random) -> None:
        self._limits = limits
        self.state: State = "up"
        self.reason = ""
        self.replacements = 0
        self.last_answer_s = now_s
        self._is_asking = False
        self._asked_s = now_s
        self._silent_since_s: float | None = None
        self._seen_s = now_s
        self._starts: deque[float] = deque(maxlen=limits.replacements)
        self._up_since_s = now_s
        # It begins again when the engine was up for a whole window.
        self._back_off = BackOff(limits.first_wait_s, limits.longest_wait_s, chance, jitter=(1.0, 1.5))
        self._wait_until_s = now_s
        self._stuck: deque[tuple[float, int]] = deque()
        self._slots: int | None = None
        self._freed_s = -math.inf

    # ------------------------------------------------------------ state

    def trouble(self, now_s: float) -> str | None:
        """Says why the engine should get no work now; None if all is well."""
        if self.state == "starting":
            return f"the engine is being replaced: {self.reason}"
        if self.state == "waiting":
            wait_s = max(0.0, self._wait_until_s - now_s)
            return f"the engine was replaced too often of late, and is tried again in {wait_s:.0f} s: {self.reason}"
        silence_s = self._silence_s(now_s)
        return f"the engine has not answered for {silence_s:.0f} s" if silence_s >= self._limits.silent_s else None

    def retry_after_s(self, now_s: float) -> float:
        return max(5.0, self._wait_until_s - now_s) if self.state == "waiting" else 5.0

    @property
    def stuck(self) -> int:
        """The number of tasks that were cancelled long ago and still run."""
        return min((count for _, count in self._stuck), default=0) if self._is_stuck_known() else 0

    # ------------------------------------------------------------ events in, actions out

    def handle(self, event: WatchdogEvent, now_s: float) -> Sequence[WatchdogAction]:
        if isinstance(event, WatchdogTick):
            return self._time_passed(event, now_s)
        if isinstance(event, StartSucceeded):
            self.state, self.reason = "up", ""
            self._up_since_s = now_s
            self.last_answer_s = self._asked_s = now_s
            self._silent_since_s, self._is_asking = None, False
            self._stuck.clear()
            return ()
        if isinstance(event, StartFailed):
            self.reason = event.reason
            return self._start(now_s)
        if self.state != "up":
            return ()  # an event of the previous engine
        if isinstance(event, ReplacementRequested):
            self.reason = event.reason
            return (KillEngine(self.reason, is_overfull=True), *self._start_now())
        self._is_asking = False
        if isinstance(event, PingFailed):
            return ()  # treated like no answer
        self._silent_since_s, self.last_answer_s = None, now_s
        self._slots = event.slots
        self._stuck.append((now_s, event.stuck))
        while len(self._stuck) > 1 and self._stuck[1][0] <= now_s - self._limits.stuck_s:
            self._stuck.popleft()
        return self._fail("Spark's context has ended", now_s) if event.is_stopped else ()

    def _time_passed(self, event: WatchdogTick, now_s: float) -> Sequence[WatchdogAction]:
        passed_s, self._seen_s = now_s - self._seen_s, now_s
        limits = self._limits
        if self.state == "waiting":
            return self._start(now_s) if now_s >= self._wait_until_s else ()
        if self.state == "starting":
            return ()
        if self._silent_since_s is not None and passed_s >= limits.paused_s:
            self._silent_since_s += passed_s
        if event.has_ended:
            return self._fail("its process has ended", now_s)
        unstoppable = event.lost + self.stuck
        is_exhausted = event.is_exhausted or (self._slots is not None and self.stuck >= self._slots)
        if is_exhausted or (unstoppable >= limits.lost_limit and now_s - self._freed_s >= limits.window_s):
            self._freed_s = now_s
            subject = (
                "too few of its threads are left, since others" if is_exhausted else f"{unstoppable} of its threads"
            )
            self.reason = f"{subject} could not be stopped"
            # An engine without threads is as useless as one that crashed, and counts as such.
            start = self._start(now_s) if is_exhausted else self._start_now()
            return (KillEngine(self.reason, is_overfull=True), *start)
        if self._silence_s(now_s) >= limits.ping_timeout_s:
            return self._fail(f"it has not answered for {limits.ping_timeout_s:g} s", now_s)
        if self._is_asking or now_s < self._asked_s + limits.ping_period_s:
            return ()
        self._is_asking, self._asked_s = True, now_s
        if self._silent_since_s is None:
            self._silent_since_s = now_s
        return (SendPing(),)

    def _fail(self, reason: str, now_s: float) -> Sequence[WatchdogAction]:
        self.reason = reason
        return (KillEngine(reason), *self._start(now_s))

    def _start(self, now_s: float) -> Sequence[WatchdogAction]:
        """Starts an engine now, or after a back-off if there were too many starts recently."""
        limits = self._limits
        while self._starts and self._starts[0] <= now_s - limits.window_s:
            self._starts.popleft()
        if self.state == "up" and now_s - self._up_since_s >= limits.window_s:
            self._back_off.reset()
        if self.state != "waiting" and (self._back_off.failures or len(self._starts) >= limits.replacements):
            self.state = "waiting"
            self._wait_until_s = now_s + self._back_off.next_s()
            return ()
        self._starts.append(now_s)
        return self._start_now()

    def _start_now(self) -> Sequence[WatchdogAction]:
        self.state = "starting"
        self.replacements += 1
        return (StartEngine(),)

    def _silence_s(self, now_s: float) -> float:
        return 0.0 if self._silent_since_s is None else now_s - self._silent_since_s

    def _is_stuck_known(self) -> bool:
        return len(self._stuck) > 1 and self._stuck[-1][0] - self._stuck[0][0] >= self._limits.stuck_s
