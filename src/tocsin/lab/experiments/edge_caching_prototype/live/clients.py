"""The subscribers of a scenario as clients of live brokers: the same people at each broker, doing the same at the same
time.

A subscriber that is notified of results pulls them, as in the paper, through the SDK: notified over a WebSocket, pulled
and acknowledged over HTTP.
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
from tocsin.lab.scenarios import scenario as acts
from tocsin.lab.scenarios.scenario import Scenario
from tocsin.sdk import Available, Client, Result
from tocsin.wire.errors import NotFoundError, TocsinError, UnavailableError

PASSWORD: Final = "a good secret"  # noqa: S105 - of simulated subscribers
_PATIENCE_S: Final = 300.0
_AT_ONCE: Final = 16


@dataclass(slots=True)
class ClientFigures:
    """What the clients of one broker measured. `waited_s` is summed over results; `lags_s` is the time from an
    execution until an online subscriber had its result."""

    retrievals: int = 0
    results: int = 0
    waited_s: float = 0.0
    lags_s: list[float] = field(default_factory=list)
    interests: set[int] = field(default_factory=set)


class _LiveClient:
    """One subscriber at one broker. It performs its acts in order."""

    def __init__(self, name: str, url: str, seen: ClientFigures) -> None:
        self._name, self._url, self._seen = name, url, seen
        self._client = Client(url, name, PASSWORD, register=True, patience_s=_PATIENCE_S)
        self._open = False
        self._stream: Client | None = None
        self._listening: asyncio.Task[None] | None = None
        self._since_s = 0.0
        self._order, self._places, self._pulling = asyncio.Lock(), asyncio.Lock(), asyncio.Lock()

    async def register(self) -> None:
        await self._client.__aenter__()
        self._open = True

    async def perform(self, act: acts.Act) -> None:
        if isinstance(act, acts.MoveStep):
            # Publishing a location has its own lock, so that it does not delay a logout.
            async with self._places:
                record = schema.location_record(self._name, act.east_m, act.north_m)
                await publish(self._client, "LocationFeed", record)
            return
        async with self._order:
            match act:
                case acts.LogInStep():
                    await self._log_in()
                case acts.LogOutStep():
                    await self._log_out()
                case acts.SubscribeStep(_, channel, parameters):
                    full = f"{schema.DATAVERSE}.{channel}"
                    subscription = await self._client.subscribe(full, parameters, mode="notify")
                    self._seen.interests.add(subscription.interest)
                case acts.UnsubscribeStep(_, channel, parameters):
                    full = f"{schema.DATAVERSE}.{channel}"
                    for current in list(self._client.known.values()):
                        if current.channel == full and tuple(current.parameters) == parameters:
                            await self._client.unsubscribe(current)
                case _:
                    raise TypeError(act)

    async def leave(self) -> None:
        await self._log_out()
        if self._open:
            await self._client.close()

    async def _log_in(self) -> None:
        assert self._client.who is not None
        deadline_s = time() + _PATIENCE_S
        while True:
            stream = Client(self._url, token=self._client.who.token, patience_s=_PATIENCE_S)
            try:
                await stream.__aenter__()
                break
            except UnavailableError:
                # Retry: a busy broker accepts connections late, and the SDK gives up on a broker that it never reached.
                if time() > deadline_s:
                    raise
        self._stream = stream
        self._since_s = time()
        self._listening = asyncio.create_task(self._listen(self._stream))

    async def _log_out(self) -> None:
        if self._listening is not None:
            # Finish and acknowledge a pull that is under way before leaving.
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
        async for event in stream.results():
            if isinstance(event, Available):
                async with self._pulling:
                    with suppress(NotFoundError):  # it has just unsubscribed
                        await self._pull(event)

    async def _pull(self, available: Available) -> None:
        figures, began_s, waited_s, count = self._seen, perf_counter(), 0.0, 0
        async for event in self._client.pull(available):
            waited_s = perf_counter() - began_s
            if isinstance(event, Result):
                count += 1
                executed_s = event.executed_at.timestamp()
                if executed_s > self._since_s:
                    figures.lags_s.append(time() - executed_s)
        if count:
            figures.retrievals += 1
            figures.results += count
            figures.waited_s += waited_s * count


class LiveClients:
    """A target of the scenario driver. `perform` starts an act and returns; `tasks` gets its errors.

    Every subscriber is at every broker, but publishes once: locations through the brokers in turn, reports through the
    first.
    """

    def __init__(self, scenario: Scenario, brokers: Mapping[str, str], tasks: asyncio.TaskGroup) -> None:
        names = sorted({act.subscriber for step in scenario.steps if not isinstance(act := step.act, acts.PublishStep)})
        self.seen = {broker: ClientFigures() for broker in brokers}
        self._at = {
            name: [_LiveClient(name, url, self.seen[broker]) for broker, url in brokers.items()] for name in names
        }
        self._of_place = {name: number % len(brokers) for number, name in enumerate(names)}
        self._agency = Client(next(iter(brokers.values())), "agency", PASSWORD, register=True, patience_s=_PATIENCE_S)
        self._tasks = tasks
        self._under_way: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> LiveClients:
        await self._agency.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await _few_at_once(client.leave for clients in self._at.values() for client in clients)
        await self._agency.close()

    async def register(self, on_registered: Callable[[int, int], None]) -> None:
        everybody = [client for clients in self._at.values() for client in clients]
        done = 0

        async def register_client(client: _LiveClient) -> None:
            nonlocal done
            await client.register()
            done += 1
            on_registered(done, len(everybody))

        await _few_at_once(partial(register_client, client) for client in everybody)

    async def publish(self, feed: str, record: Mapping[str, object], *, visible: bool = False) -> None:
        await publish(self._agency, feed, record, visible=visible)

    async def perform(self, act: acts.Act, at_s: float) -> None:  # noqa: ARG002 - the clock has waited for it
        match act:
            case acts.PublishStep("ReportFeed", record):
                self._begin(self.publish("ReportFeed", schema.report_record(record)))
            case acts.PublishStep(feed, record):
                self._begin(self.publish(feed, schema.shelter_record(record)))
            case acts.MoveStep(name):
                self._begin(self._at[name][self._of_place[name]].perform(act))
            case _:
                for client in self._at[act.subscriber]:
                    self._begin(client.perform(act))

    async def all_done(self) -> None:
        """Returns when all acts that were started are over."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)


async def publish(client: Client, feed: str, record: Mapping[str, object], *, visible: bool = False) -> None:
    outcome = await client.publish(f"{schema.DATAVERSE}.{feed}", record, visible=visible)
    if outcome.rejected:
        raise TocsinError(f"{feed} refused a record: {outcome.rejected[0]}")


async def _few_at_once(work: Iterable[Callable[[], Awaitable[None]]]) -> None:
    limit = asyncio.Semaphore(_AT_ONCE)

    async def run(job: Callable[[], Awaitable[None]]) -> None:
        async with limit:
            await job()

    results: Sequence[BaseException | None] = await asyncio.gather(*(run(job) for job in work), return_exceptions=True)
    for error in results:
        if isinstance(error, BaseException):
            raise error
