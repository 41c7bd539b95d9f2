"""Fan-out: writes what the core delivers to every online subscriber of the audience.

An event for many subscribers is encoded once and written to all of them, in batches of some hundreds. The task yields
to the event loop between batches, so that ten thousand listeners of one interest do not delay others. Promises:

- the events of an interest reach each listener in order;
- a full outlet (a slow consumer) is given nothing, and nothing is buffered for it: the core learns where the
  subscription stopped, and continues from there when there is room;
- a subscriber that logs in during a fan-out does not receive that event out of order: the core sends it everything that
  it lacks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from tocsin.broker.core import actions as ac
from tocsin.broker.core import events as ev
from tocsin.broker.core_runtime import CoreRuntime
from tocsin.broker.delivery.event_encoder import EncodedEvent, EventEncoder, OutletForm
from tocsin.broker.delivery.outlets import NO_SUBSCRIPTIONS, EventOutlet, Listener
from tocsin.broker.metrics import BrokerCounters
from tocsin.clock import now_us
from tocsin.rules.model.cursors import Cursor, InterestId, SubscriptionId

_log = structlog.get_logger("tocsin.broker.fanout")


@dataclass(slots=True)
class FanOutJob:
    """An event on its way to many subscribers. `rest`: the subscriptions not reached yet; `turn`: the job's number."""

    turn: int
    events: Sequence[EncodedEvent]
    rest: Sequence[SubscriptionId]
    after: Cursor | None
    executed_us: Sequence[int]


class FanOut:
    """The online subscribers with their outlets, and the jobs that write events to them. `at_once`: the number of
    writes in a batch, after which other tasks run."""

    def __init__(
        self, runtime: CoreRuntime, encoder: EventEncoder, counters: BrokerCounters, *, patience_s: float,
        at_once: int = 500,
    ) -> None:  # fmt: skip
        self._at_once = at_once
        self._patience_s = patience_s
        self._runtime = runtime
        self._encoder = encoder
        self._counters = counters
        self._listeners: dict[int, Listener] = {}
        self._of_subscription: dict[SubscriptionId, Listener] = {}
        # The number of the newest job.
        self._turn = 0
        # Jobs in progress, in order, by interest.
        self._under_way: dict[InterestId, deque[FanOutJob]] = {}
        # Subscriptions that fell behind during a fan-out, with the last job that is not for them.
        self._passed_over: dict[SubscriptionId, int] = {}
        self._writing: asyncio.Task[None] | None = None

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    @property
    def behind(self) -> int:
        """The number of slow consumers. A subscriber that only catches up is behind, too, but has room."""
        return sum(1 for listener in self._listeners.values() if listener.behind and listener.full)

    def outlets_of(self, subscriber: int) -> Sequence[EventOutlet]:
        listener = self._listeners.get(subscriber)
        return () if listener is None else listener.outlets

    def is_online(self, subscriber: int) -> bool:
        return subscriber in self._listeners

    # --- outlets that attach and detach

    def attach(self, subscriber: int, outlet: EventOutlet) -> None:
        """Adds an outlet of the subscriber. All of its outlets then receive everything that it has not acknowledged."""
        listener = self._listeners.get(subscriber)
        if listener is None:
            listener = self._listeners[subscriber] = Listener(subscriber, self._turn)
        else:
            self._runtime.handle(ev.SubscriberLoggedOut(subscriber))
        listener.born = self._turn
        listener.behind = NO_SUBSCRIPTIONS
        listener.add(outlet)
        for subscription in self._runtime.core.subscriptions_of(subscriber):
            self._of_subscription[subscription] = listener
        self._runtime.handle(ev.SubscriberLoggedIn(subscriber))

    def detach(self, outlet: EventOutlet) -> None:
        """Removes the outlet. After its last outlet the subscriber is offline."""
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
        for subscription in self._runtime.core.subscriptions_of(listener.subscriber):
            self._of_subscription.pop(subscription, None)
        self._runtime.handle(ev.SubscriberLoggedOut(listener.subscriber))

    def add_subscription(self, subscriber: int, subscription: SubscriptionId) -> None:
        """Call this before the core handles the new subscription."""
        if (listener := self._listeners.get(subscriber)) is not None:
            self._of_subscription[subscription] = listener

    def remove_subscription(self, subscription: SubscriptionId) -> None:
        if (listener := self._of_subscription.pop(subscription, None)) is not None:
            listener.behind.discard(subscription)

    def shed(self, subscriber: int) -> None:
        """Ends the subscriber's connections, so that it reconnects and learns what has changed."""
        for outlet in list(self.outlets_of(subscriber)):
            outlet.shed()

    def resume_outlet(self, outlet: EventOutlet) -> None:
        """The outlet has room again."""
        if outlet.listener is not None:
            self._resume(outlet.listener)

    def _resume(self, listener: Listener) -> None:
        """Reports subscriptions as ready while there is room, and limits how long a slow outlet delays another."""
        while listener.behind and not listener.full:
            self._runtime.handle(ev.SubscriberReady(listener.behind.pop()))
        if listener.behind and len(listener.outlets) > 1 and listener.patience is None:
            loop = asyncio.get_running_loop()
            listener.patience = loop.call_later(self._patience_s, self._give_up_slow, listener)

    def _give_up_slow(self, listener: Listener) -> None:
        """Closes outlets that are still full, so that a slow outlet does not hold up another of the same subscriber."""
        listener.patience = None
        full = [outlet for outlet in listener.outlets if outlet.full]
        if len(full) < len(listener.outlets):
            for outlet in full:
                listener.remove(outlet)
                self._counters.shed += 1
                outlet.shed()
        self._resume(listener)

    # --- actions of the core

    def deliver(self, action: ac.Deliver) -> None:
        """Sends results that have just arrived, or the next page to a subscriber that catches up."""
        if action.why is ac.DeliveryReason.CAUGHT_UP:
            self._catch_up(action)
        else:
            events = self._encoder.results(action)
            executed_us = [result.payload.executed_us for result in action.results]
            self._fan_out(action.interest, events, action.audience, action.after, executed_us)

    def notify(self, action: ac.NotifyAvailable) -> None:
        """Tells subscribers that there are results to pull."""
        events = [self._encoder.available(action)]
        # A full outlet misses this notification; the core repeats it when the outlet has room.
        self._fan_out(action.interest, events, action.audience, None, ())

    def end(self, action: ac.EndSubscriptions) -> None:
        """Notifies the online subscribers of these subscriptions of their end and the reason."""
        event = self._encoder.encode_end(action)
        for subscription in action.audience:
            listener = self._of_subscription.get(subscription)
            self.remove_subscription(subscription)
            if listener is not None:
                self._send_through_outlets(listener, [event])

    def _catch_up(self, action: ac.Deliver) -> None:
        """Sends a page to subscriptions that catch up; the next page follows when there is room."""
        events: Sequence[EncodedEvent] | None = None
        for subscription in action.audience:
            listener = self._of_subscription.get(subscription)
            if listener is None:
                continue
            if listener.full:
                self._fell_behind(subscription, listener, action.after)
                continue
            if events is None:
                events = self._encoder.results(action)
            sent = self._send_through_outlets(listener, events)
            if sent < len(events):
                to = events[sent - 1].to
                self._counters.delivered += sum(1 for result in action.results if to is None or result.cursor <= to)
                self._fell_behind(subscription, listener, to)
                continue
            self._counters.delivered += len(action.results)
            if action.more:
                listener.put_behind(subscription)
                # Continue in the next iteration of the event loop, so that many subscribers catch up in turn.
                asyncio.get_running_loop().call_soon(self._resume, listener)

    def _fell_behind(self, name: SubscriptionId, listener: Listener, after: Cursor | None) -> None:
        """Reports a slow consumer to the core, which continues after the cursor `after` when there is room."""
        if name in listener.behind:
            # The core knows an earlier position, or will soon; this event would be out of order.
            return
        listener.put_behind(name)
        # This also starts the timer after which a slow outlet is closed.
        asyncio.get_running_loop().call_soon(self._resume, listener)
        if self._under_way:
            self._passed_over[name] = self._turn
        self._runtime.handle(ev.SubscriberFellBehind(name, after))

    # --- fan-out to many listeners

    def _fan_out(
        self,
        interest: InterestId,
        events: Sequence[EncodedEvent],
        audience: Collection[SubscriptionId],
        after: Cursor | None,
        executed_us: Sequence[int],
    ) -> None:
        """Writes a small audience at once; queues a large one, or one whose interest has jobs in progress."""
        self._turn += 1
        subscriptions = list(audience)
        job = FanOutJob(self._turn, events, subscriptions, after, executed_us)
        queue = self._under_way.get(interest)
        if queue is None and len(subscriptions) <= self._at_once:
            self._write_frames(job, subscriptions)
            return
        if queue is None:
            queue = self._under_way[interest] = deque()
        queue.append(job)
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_queued_jobs())

    async def _write_queued_jobs(self) -> None:
        """Takes turns between interests, with one batch of writes each."""
        while self._under_way:
            for interest in list(self._under_way):
                queue = self._under_way[interest]
                job = queue[0]
                batch, job.rest = job.rest[: self._at_once], job.rest[self._at_once :]
                if not job.rest:
                    queue.popleft()
                    if not queue:
                        del self._under_way[interest]
                self._write_frames(job, batch)
                await asyncio.sleep(0)
        self._passed_over.clear()
        self._writing = None

    def _write_frames(self, job: FanOutJob, names: Sequence[SubscriptionId]) -> None:
        """Writes the job's events to a batch of subscriptions, and reports slow consumers to the core."""
        listeners, passed_over, turn, events = self._of_subscription, self._passed_over, job.turn, job.events
        frame = events[0].frame_as(OutletForm.WEBSOCKET)
        at_once = len(events) == 1
        behind: list[tuple[SubscriptionId, Listener, Cursor | None]] = []
        reached = 0
        for subscription in names:
            listener = listeners.get(subscription)
            if listener is None or listener.born >= turn:
                continue
            if passed_over and passed_over.get(subscription, 0) >= turn:
                continue
            transport = listener.direct
            if transport is not None and at_once:
                # The hot path, executed ten thousand times per message: every step and every attribute access counts.
                try:
                    transport.write(frame)
                except Exception as error:
                    self._close_broken(listener.outlets[0], error)
            elif listener.full:
                behind.append((subscription, listener, job.after))
                continue
            elif (sent := self._send_through_outlets(listener, events)) < len(events):
                behind.append((subscription, listener, events[sent - 1].to))
            reached += 1
        if job.executed_us:
            self._counters.count_deliveries(job.executed_us, reached, now_us())
        for subscription, listener, after in behind:
            self._fell_behind(subscription, listener, after)

    def _send_through_outlets(self, listener: Listener, events: Sequence[EncodedEvent]) -> int:
        """Writes the events until the listener is full; returns how many it took, at least one."""
        outlets = list(listener.outlets)
        for index, event in enumerate(events):
            if index and listener.full:
                return index
            for outlet in tuple(outlets):
                try:
                    outlet.write(event)
                except Exception as error:
                    outlets.remove(outlet)
                    self._close_broken(outlet, error)
        return len(events)

    def _close_broken(self, outlet: EventOutlet, error: Exception) -> None:
        """Closes a broken outlet without effect on others. Its subscriber gets unacknowledged results again."""
        _log.warning("writing to a connection failed", error=repr(error))
        with suppress(Exception):
            outlet.shed()

    async def close(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
