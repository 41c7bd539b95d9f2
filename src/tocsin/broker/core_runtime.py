"""Runs the broker core: hands it events with the time, has its actions performed, and wakes it at `next_wake_s`.

The core itself has no clock and does no I/O, so that the simulators run the same core under virtual time.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from tocsin.broker.core import events as ev
from tocsin.broker.core.broker import Broker
from tocsin.broker.trace import BrokerTrace
from tocsin.rules.model.cursors import InterestId

_FLUSH_EVERY_S: Final = 1.0

_log = structlog.get_logger("tocsin.broker.core_runtime")

_Perform = Callable[[Any], None]


class CoreRuntime:
    """Call `handle` on the event loop only. An event that an action causes is handled after the current one.

    `performers` says who performs which action (see broker/app.py).
    """

    def __init__(self, core: Broker, clock: Callable[[], float] = time.monotonic) -> None:
        self.core = core
        self.trace: BrokerTrace | None = None
        self._clock = clock
        self.performers: Mapping[type, _Perform] = {}
        # Events that actions caused, to be handled after the current one.
        self._waiting: deque[ev.BrokerEvent] = deque()
        self._handling = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf
        self._flush: asyncio.TimerHandle | None = None
        self.arrivals: dict[InterestId, set[asyncio.Event]] = {}
        self._closed = False

    @property
    def now_s(self) -> float:
        return self._clock()

    def handle(self, event: ev.BrokerEvent) -> None:
        """Handles the event and performs the actions that follow from it before it returns. A call from within an
        action only queues the event."""
        if self._closed:
            return
        self._waiting.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._waiting:
                next_event = self._waiting.popleft()
                now_s = self._clock()
                if self.trace is not None:
                    self.trace.record(next_event, now_s)
                    self._flush_soon()
                for action in self.core.handle(next_event, now_s):
                    try:
                        self.performers[type(action)](action)
                    except Exception as error:
                        # A bug in one action must not prevent the actions after it.
                        _log.error("an action of the broker core failed", action=type(action).__name__, exc_info=error)
        finally:
            self._handling = False
        self._set_timer()

    def close(self) -> None:
        """Stops the timers and ignores all further events."""
        self._closed = True
        for timer in (self._timer, self._flush):
            if timer is not None:
                timer.cancel()
        if self.trace is not None:
            self.trace.close(self._clock())

    # --- time

    def _set_timer(self) -> None:
        due_s = self.core.next_wake_s
        if due_s == self._timer_s or self._closed:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_s = due_s
        if due_s < math.inf:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, due_s - self._clock()) + 0.001, self._tick)

    def _tick(self) -> None:
        self._timer, self._timer_s = None, math.inf
        self.handle(ev.TimePassed())

    def _flush_soon(self) -> None:
        if self._flush is None:
            self._flush = asyncio.get_running_loop().call_later(_FLUSH_EVERY_S, self._flush_now)

    def _flush_now(self) -> None:
        self._flush = None
        if self.trace is not None:
            self.trace.flush()

    # --- waiting for results

    def wake_waiters(self, interest: InterestId) -> None:
        """Wakes everything that waits for new results of this interest."""
        for arrival in self.arrivals.get(interest, ()):
            arrival.set()

    def expect(self, interest: InterestId) -> asyncio.Event:
        """An asyncio event that is set when new results of this interest arrive."""
        arrival = asyncio.Event()
        self.arrivals.setdefault(interest, set()).add(arrival)
        return arrival

    def forget(self, interest: InterestId, waiting: asyncio.Event) -> None:
        arrivals = self.arrivals[interest]
        arrivals.discard(waiting)
        if not arrivals:
            del self.arrivals[interest]
