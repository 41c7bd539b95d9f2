"""Who is there, and getting to each what the core wants delivered.

What goes to many is encoded once and written to all of them, some hundreds at a time with a breath in between, so that
ten thousand listeners of one interest do not make the others wait. Promises:

- the events of an interest reach each listener in order;
- an outlet that has no room is given nothing: the core is told where its subscription stopped, and goes on from there
  when there is room. Nobody waits for it, and nothing is kept for it;
- who logs in while something is being fanned out does not get it out of turn: the core sends it all that it lacks.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Collection, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import structlog

from tocsin.broker.core import actions as ac
from tocsin.broker.core import events as ev
from tocsin.broker.core_runtime import CoreRuntime
from tocsin.broker.counters import BrokerCounters
from tocsin.broker.delivery.event_encoder import EventEncoder
from tocsin.broker.delivery.outlets import NOBODY, EncodedEvent, EventOutlet, Listener, OutletForm
from tocsin.rules.model.cursors import Cursor

_log = structlog.get_logger("tocsin.broker.presence")

AT_ONCE: Final = 500
"""Writes between two breaths."""


@dataclass(slots=True)
class FanOutJob:
    """Something on its way to many: `rest` is whom it has not reached."""

    turn: int
    told: Sequence[EncodedEvent]
    rest: Sequence[int]
    after: Cursor | None
    executed_us: Sequence[int]
    reached: int = 0


class FanOut:
    def __init__(
        self, machine: CoreRuntime, letters: EventEncoder, figures: BrokerCounters, *, patience_s: float
    ) -> None:
        self._patience_s = patience_s
        self._machine = machine
        self._letters = letters
        self._figures = figures
        self._listeners: dict[int, Listener] = {}
        self._of_subscription: dict[int, Listener] = {}
        self._turn = 0
        self._under_way: dict[Hashable, deque[FanOutJob]] = {}
        # Subscriptions that fell behind while something was under way, and up to which turn that is not for them.
        self._passed_over: dict[int, int] = {}
        self._fanning: asyncio.Task[None] | None = None
        machine.on(ac.NotifyAvailable, self._notify)
        machine.on(ac.EndSubscriptions, self.ended)

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    @property
    def behind(self) -> int:
        return sum(1 for one in self._listeners.values() if one.behind)

    def outlets_of(self, subscriber: int) -> Sequence[EventOutlet]:
        listener = self._listeners.get(subscriber)
        return () if listener is None else listener.outlets

    def here(self, subscriber: int) -> bool:
        return subscriber in self._listeners

    # --- coming and going

    def attach(self, subscriber: int, outlet: EventOutlet) -> None:
        """The subscriber is there with this outlet, and gets everything that it has not acknowledged, in all of its
        outlets."""
        listener = self._listeners.get(subscriber)
        if listener is None:
            listener = self._listeners[subscriber] = Listener(subscriber, self._turn)
        else:
            self._machine.handle(ev.SubscriberLoggedOut(subscriber))
        listener.born = self._turn
        listener.behind = NOBODY
        listener.add(outlet)
        for subscription in self._machine.core.subscriptions_of(subscriber):
            assert isinstance(subscription, int)
            self._of_subscription[subscription] = listener
        self._machine.handle(ev.SubscriberLoggedIn(subscriber))

    def detach(self, outlet: EventOutlet) -> None:
        listener = outlet.listener
        if listener is None:
            return
        listener.remove(outlet)
        if listener.outlets:
            self._resume(listener)
            return
        if listener.patience is not None:
            listener.patience.cancel()
        del self._listeners[listener.subscriber]
        for subscription in self._machine.core.subscriptions_of(listener.subscriber):
            assert isinstance(subscription, int)
            self._of_subscription.pop(subscription, None)
        self._machine.handle(ev.SubscriberLoggedOut(listener.subscriber))

    def subscribed(self, subscriber: int, subscription: int) -> None:
        """Before the core is told of a new subscription."""
        if (listener := self._listeners.get(subscriber)) is not None:
            self._of_subscription[subscription] = listener

    def unsubscribed(self, subscription: int) -> None:
        if (listener := self._of_subscription.pop(subscription, None)) is not None:
            listener.behind.discard(subscription)

    def shed(self, subscriber: int) -> None:
        """The subscriber's connections end; it comes back, and learns what has changed."""
        for outlet in list(self.outlets_of(subscriber)):
            outlet.shed()

    def room(self, outlet: EventOutlet) -> None:
        """The outlet takes more again."""
        if outlet.listener is not None:
            self._resume(outlet.listener)

    def _resume(self, listener: Listener) -> None:
        while listener.behind and not listener.full:
            self._machine.handle(ev.SubscriberReady(listener.behind.pop()))
        if listener.behind and len(listener.outlets) > 1 and listener.patience is None:
            loop = asyncio.get_running_loop()
            listener.patience = loop.call_later(self._patience_s, self._give_up_slow, listener)

    def _give_up_slow(self, listener: Listener) -> None:
        """One slow outlet must not hold up another of the same subscriber for long."""
        listener.patience = None
        full = [outlet for outlet in listener.outlets if outlet.full]
        if len(full) < len(listener.outlets):
            for outlet in full:
                listener.remove(outlet)
                self._figures.shed += 1
                outlet.shed()
        self._resume(listener)

    # --- what the core wants

    def deliver(self, action: ac.Deliver) -> None:
        """Results that have just come, or that somebody catches up with."""
        if action.why is ac.DeliveryReason.CAUGHT_UP:
            self._catch_up(action)
        else:
            told = self._letters.results(action)
            executed_us = [one.payload.executed_us for one in action.results]
            self._fan_out(action.interest, told, action.audience, action.after, executed_us)

    def _notify(self, action: ac.NotifyAvailable) -> None:
        told = [self._letters.available(action)]
        # Whoever is not told now is told when there is room: the core says it again when it is ready.
        self._fan_out(action.interest, told, action.audience, None, ())

    def ended(self, action: ac.EndSubscriptions) -> None:
        """These subscriptions are gone: who is there hears of it, and why."""
        told = self._letters.ended(action)
        for name in action.audience:
            assert isinstance(name, int)
            listener = self._of_subscription.get(name)
            self.unsubscribed(name)
            if listener is not None:
                self._send(listener, [told])

    def _catch_up(self, action: ac.Deliver) -> None:
        told: Sequence[EncodedEvent] | None = None
        for name in action.audience:
            assert isinstance(name, int)
            listener = self._of_subscription.get(name)
            if listener is None:
                continue
            if listener.full:
                self._fell_behind(name, listener, action.after)
                continue
            if told is None:
                told = self._letters.results(action)
            sent = self._send(listener, told)
            if sent < len(told):
                to = told[sent - 1].to
                self._figures.delivered += sum(1 for one in action.results if to is None or one.cursor <= to)
                self._fell_behind(name, listener, to)
                continue
            self._figures.delivered += len(action.results)
            if action.more:
                listener.put_behind(name)
                # After what else is to be done now: many who catch up take turns.
                asyncio.get_running_loop().call_soon(self._resume, listener)

    def _fell_behind(self, name: int, listener: Listener, after: Cursor | None) -> None:
        if name in listener.behind:
            # The core has been told of an earlier place, or is about to be: what comes now is out of its turn.
            return
        listener.put_behind(name)
        # Also to be patient with it for so long only.
        asyncio.get_running_loop().call_soon(self._resume, listener)
        if self._under_way:
            self._passed_over[name] = self._turn
        self._machine.handle(ev.SubscriberFellBehind(name, after))

    # --- many

    def _fan_out(
        self,
        interest: Hashable,
        told: Sequence[EncodedEvent],
        audience: Collection[Hashable],
        after: Cursor | None,
        executed_us: Sequence[int],
    ) -> None:
        self._turn += 1
        names: Sequence[int] = list(audience)  # type: ignore[arg-type]
        one = FanOutJob(self._turn, told, names, after, executed_us)
        queue = self._under_way.get(interest)
        if queue is None and len(names) <= AT_ONCE:
            self._write(one, names)
            return
        if queue is None:
            queue = self._under_way[interest] = deque()
        queue.append(one)
        if self._fanning is None:
            self._fanning = asyncio.get_running_loop().create_task(self._fan())

    async def _fan(self) -> None:
        """Interests take turns, each with some hundreds of writes."""
        while self._under_way:
            for interest in list(self._under_way):
                queue = self._under_way[interest]
                one = queue[0]
                now, one.rest = one.rest[:AT_ONCE], one.rest[AT_ONCE:]
                if not one.rest:
                    queue.popleft()
                    if not queue:
                        del self._under_way[interest]
                self._write(one, now)
                await asyncio.sleep(0)
        self._passed_over.clear()
        self._fanning = None

    def _write(self, one: FanOutJob, names: Sequence[int]) -> None:
        places, passed_over, turn, told = self._of_subscription, self._passed_over, one.turn, one.told
        frame = told[0].form(OutletForm.WEBSOCKET)
        at_once = len(told) == 1
        behind: list[tuple[int, Listener, Cursor | None]] = []
        reached = 0
        for name in names:
            listener = places.get(name)
            if listener is None or listener.born >= turn:
                continue
            if passed_over and passed_over.get(name, 0) >= turn:
                continue
            transport = listener.direct
            if transport is not None and at_once:
                # Done ten thousand times a message: every step counts, and every object that is looked at.
                try:
                    transport.write(frame)
                except Exception as error:
                    self._broke(listener.outlets[0], error)
            elif listener.full:
                behind.append((name, listener, one.after))
                continue
            elif (sent := self._send(listener, told)) < len(told):
                behind.append((name, listener, told[sent - 1].to))
            reached += 1
        if one.executed_us:
            self._figures.reached(one.executed_us, reached, time.time_ns() // 1_000)
        for name, listener, after in behind:
            self._fell_behind(name, listener, after)

    def _send(self, listener: Listener, told: Sequence[EncodedEvent]) -> int:
        """How many of them it took before it was full: at least the first."""
        outlets = list(listener.outlets)
        for place, one in enumerate(told):
            if place and listener.full:
                return place
            for outlet in tuple(outlets):
                try:
                    outlet.write(one)
                except Exception as error:
                    outlets.remove(outlet)
                    self._broke(outlet, error)
        return len(told)

    def _broke(self, outlet: EventOutlet, error: Exception) -> None:
        """What is wrong with one outlet concerns no other. Its subscriber gets again what it has not acknowledged."""
        _log.warning("a connection broke", error=repr(error))
        with suppress(Exception):
            outlet.shed()

    async def close(self) -> None:
        if self._fanning is not None:
            self._fanning.cancel()
            await asyncio.gather(self._fanning, return_exceptions=True)
