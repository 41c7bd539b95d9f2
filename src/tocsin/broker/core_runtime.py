"""Owns the broker's core: hands it events with the time, has its actions performed, and wakes it when it asks to be."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Final

import structlog

from tocsin.broker.core import actions as ac
from tocsin.broker.core import events as ev
from tocsin.broker.core.broker import Broker
from tocsin.broker.trace import BrokerTrace

FLUSH_EVERY_S: Final = 1.0

_log = structlog.get_logger("tocsin.broker.machine")

Perform = Callable[[Any], None]


class CoreRuntime:
    """`handle` is called on the event loop only. What performing an action makes happen is handled after it."""

    def __init__(self, core: Broker, clock: Callable[[], float] = time.monotonic) -> None:
        self.core = core
        self.trace: BrokerTrace | None = None
        self._clock = clock
        self._perform: dict[type, Perform] = {}
        self._waiting: deque[ev.BrokerEvent] = deque()
        self._handling = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf
        self._flush: asyncio.TimerHandle | None = None
        self._arrivals: dict[Hashable, set[asyncio.Event]] = {}
        self._closed = False

    def on(self, action: type[ac.Action], perform: Perform) -> None:
        """Who performs actions of this kind."""
        self._perform[action] = perform

    @property
    def now_s(self) -> float:
        return self._clock()

    def handle(self, event: ev.BrokerEvent) -> None:
        """The event has happened, and all that follows from it is done when this returns. (Where it happens while an
        action is performed, it waits for its turn.)"""
        if self._closed:
            return
        self._waiting.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._waiting:
                now = self._waiting.popleft()
                now_s = self._clock()
                if self.trace is not None:
                    self.trace.happened(now, now_s)
                    self._flush_soon()
                for action in self.core.handle(now, now_s):
                    try:
                        self._perform[type(action)](action)
                    except Exception as error:
                        # A fault of ours in one action must not cost others theirs.
                        _log.error("an action failed", action=type(action).__name__, exc_info=error)
        finally:
            self._handling = False
        self._set_timer()

    def close(self) -> None:
        """Nothing happens any more."""
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
            self._flush = asyncio.get_running_loop().call_later(FLUSH_EVERY_S, self._flush_now)

    def _flush_now(self) -> None:
        self._flush = None
        if self.trace is not None:
            self.trace.flush()

    # --- waiting for results

    def arrived(self, interest: Hashable) -> None:
        """Something new of this interest is here: who waits for that looks again."""
        for waiting in self._arrivals.get(interest, ()):
            waiting.set()

    def expect(self, interest: Hashable) -> asyncio.Event:
        """Set when something new of this interest is here."""
        waiting = asyncio.Event()
        self._arrivals.setdefault(interest, set()).add(waiting)
        return waiting

    def forget(self, interest: Hashable, waiting: asyncio.Event) -> None:
        there = self._arrivals[interest]
        there.discard(waiting)
        if not there:
            del self._arrivals[interest]
