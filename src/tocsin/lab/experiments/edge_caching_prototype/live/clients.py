"""Everybody of a scenario as clients of live brokers: at each broker the same people, doing the same at the same time.

Whoever is told that there is something pulls it, as in the paper, through the SDK: told over a WebSocket, pulled and
acknowledged over HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter, time
from typing import Any, Final

from tocsin.lab.experiments.edge_caching_prototype.live import schema
from tocsin.lab.scenarios.scenario import (
    Act,
    LogInStep,
    LogOutStep,
    MoveStep,
    PublishStep,
    Scenario,
    SubscribeStep,
    UnsubscribeStep,
)
from tocsin.sdk import Available, Client, Result
from tocsin.wire.errors import NotFoundError, TocsinError, UnavailableError

PASSWORD: Final = "a good secret"  # noqa: S105 - of people who do not exist
_PATIENCE_S: Final = 300.0
_AT_ONCE: Final = 16


@dataclass(slots=True)
class ClientFigures:
    """What the people of one broker saw. `waited_s` is summed over results; `lags_s`: from the moment of an execution
    until a subscriber who was there had its result."""

    retrievals: int = 0
    results: int = 0
    waited_s: float = 0.0
    lags_s: list[float] = field(default_factory=list)
    interests: set[int] = field(default_factory=set)


class LiveClient:
    """One subscriber at one broker. What it is asked to do happens in order."""

    def __init__(self, name: str, url: str, seen: ClientFigures) -> None:
        self._name, self._url, self._seen = name, url, seen
        self._desk = Client(url, name, PASSWORD, register=True, patience_s=_PATIENCE_S)
        self._open = False
        self._stream: Client | None = None
        self._listening: asyncio.Task[None] | None = None
        self._since_s = 0.0
        self._order, self._places, self._pulling = asyncio.Lock(), asyncio.Lock(), asyncio.Lock()

    async def register(self) -> None:
        await self._desk.__aenter__()
        self._open = True

    async def perform(self, act: Act) -> None:
        if isinstance(act, MoveStep):
            # Nobody stays longer because a place is still being told.
            async with self._places:
                record = schema.location_record(self._name, act.east_m, act.north_m)
                await publish(self._desk, "LocationFeed", record)
            return
        async with self._order:
            match act:
                case LogInStep():
                    await self._come()
                case LogOutStep():
                    await self._go()
                case SubscribeStep(_, channel, parameters):
                    full = f"{schema.DATAVERSE}.{channel}"
                    made = await self._desk.subscribe(full, parameters, mode="notify")
                    self._seen.interests.add(made.interest)
                case UnsubscribeStep(_, channel, parameters):
                    full = f"{schema.DATAVERSE}.{channel}"
                    for one in list(self._desk.known.values()):
                        if one.channel == full and tuple(one.parameters) == parameters:
                            await self._desk.unsubscribe(one)
                case _:
                    raise TypeError(act)

    async def leave(self) -> None:
        await self._go()
        if self._open:
            await self._desk.close()

    async def _come(self) -> None:
        assert self._desk.who is not None
        until_s = time() + _PATIENCE_S
        while True:
            stream = Client(self._url, token=self._desk.who.token, patience_s=_PATIENCE_S)
            try:
                await stream.__aenter__()
                break
            except UnavailableError:
                # A broker that has much to do takes connections later; a client gives up on one it never reached.
                if time() > until_s:
                    raise
        self._stream = stream
        self._since_s = time()
        self._listening = asyncio.create_task(self._listen(self._stream))

    async def _go(self) -> None:
        if self._listening is not None:
            # What is being pulled is had, and acknowledged, before one leaves.
            async with self._pulling:
                self._listening.cancel()
                await asyncio.wait([self._listening])
            if not self._listening.cancelled() and (error := self._listening.exception()) is not None:
                raise error
            self._listening = None
        if self._stream is not None:
            await self._stream.close()
            self._stream = None

    async def _listen(self, stream: Client) -> None:
        async for told in stream.notifications():
            if isinstance(told, Available):
                async with self._pulling:
                    with suppress(NotFoundError):  # it has just unsubscribed
                        await self._pull(told)

    async def _pull(self, told: Available) -> None:
        seen, began_s, waited_s, count = self._seen, perf_counter(), 0.0, 0
        async for one in self._desk.pull(told):
            waited_s = perf_counter() - began_s
            if isinstance(one, Result):
                count += 1
                executed_s = one.executed_at.timestamp()
                if executed_s > self._since_s:
                    seen.lags_s.append(time() - executed_s)
        if count:
            seen.retrievals += 1
            seen.results += count
            seen.waited_s += waited_s * count


class LiveClients:
    """A target of the driver. An act has begun when `perform` returns; `tasks` gets whatever goes wrong with it.

    Everybody is at every broker, but publishes once: places through the brokers in turn, reports through the first.
    """

    def __init__(self, made: Scenario, brokers: Mapping[str, str], tasks: asyncio.TaskGroup) -> None:
        names = sorted({act.subscriber for step in made.steps if not isinstance(act := step.act, PublishStep)})
        self.seen = {broker: ClientFigures() for broker in brokers}
        self._at = {
            name: [LiveClient(name, url, self.seen[broker]) for broker, url in brokers.items()] for name in names
        }
        self._of_place = {name: number % len(brokers) for number, name in enumerate(names)}
        self._agency = Client(next(iter(brokers.values())), "agency", PASSWORD, register=True, patience_s=_PATIENCE_S)
        self._tasks = tasks
        self._under_way: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> LiveClients:
        await self._agency.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await _few_at_once(one.leave for people in self._at.values() for one in people)
        await self._agency.close()

    async def register(self, on_registered: Callable[[int, int], None]) -> None:
        everybody = [one for people in self._at.values() for one in people]
        done = 0

        async def register(one: LiveClient) -> None:
            nonlocal done
            await one.register()
            done += 1
            on_registered(done, len(everybody))

        await _few_at_once(partial(register, one) for one in everybody)

    async def publish(self, feed: str, record: Mapping[str, object], *, visible: bool = False) -> None:
        await publish(self._agency, feed, record, visible=visible)

    async def perform(self, act: Act, at_s: float) -> None:  # noqa: ARG002 - the clock has waited for it
        match act:
            case PublishStep("ReportFeed", record):
                self._begin(self.publish("ReportFeed", schema.report_record(record)))
            case PublishStep(feed, record):
                self._begin(self.publish(feed, schema.shelter_record(record)))
            case MoveStep(name):
                self._begin(self._at[name][self._of_place[name]].perform(act))
            case _:
                for one in self._at[act.subscriber]:
                    self._begin(one.perform(act))

    async def all_done(self) -> None:
        """Returns when everything that was begun is over."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)


async def publish(client: Client, feed: str, record: Mapping[str, object], *, visible: bool = False) -> None:
    said = await client.publish(f"{schema.DATAVERSE}.{feed}", record, visible=visible)
    if said.rejected:
        raise TocsinError(f"{feed} refused a record: {said.rejected[0]}")


async def _few_at_once(work: Iterable[Callable[[], Awaitable[None]]]) -> None:
    few = asyncio.Semaphore(_AT_ONCE)

    async def one(each: Callable[[], Awaitable[None]]) -> None:
        async with few:
            await each()

    results: Sequence[BaseException | None] = await asyncio.gather(
        *(one(each) for each in work), return_exceptions=True
    )
    for error in results:
        if isinstance(error, BaseException):
            raise error
