"""Runs one hour of a scenario live: starts servers, registers clients, warms up the channels, plays the steps.

One hour serves several brokers at once, so that every policy sees the same results and the cluster computes them once.
A replay of each broker's trace under virtual time must then give the broker's own figures.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Final

from tocsin.lab.experiments.edge_caching_prototype.live import schema
from tocsin.lab.experiments.edge_caching_prototype.live.clients import PASSWORD, ClientFigures, LiveClients
from tocsin.lab.experiments.edge_caching_prototype.live.options import LiveCell
from tocsin.lab.experiments.edge_caching_prototype.live.servers import LiveServer, LiveServers
from tocsin.lab.scenarios.city import CHANNELS
from tocsin.lab.scenarios.scenario import Act, Scenario, WallClock, play
from tocsin.lab.simulators.trace_replay import replay_trace
from tocsin.sdk import Client, Result
from tocsin.sdk.session import BrokerSession
from tocsin.wire.answers import Subscription
from tocsin.wire.errors import TocsinError, UnavailableError

Say = Callable[[str], None]

_DRILL: Final = "drill"
_DRILLS: Final = 3
_DRILL_LIMIT_S: Final = 120.0
_FAR_M: Final = -1e6  # far from everybody in the city
_REPORT_EVERY: Final = 0.05  # share of the hour between progress reports


@dataclass(frozen=True, slots=True)
class LiveHour:
    """The outcome of an hour at one broker: the broker's own counts, and what its clients measured.

    `late_s` and all times of executions are in seconds of the scenario.
    """

    figures: Mapping[str, float]
    seen: ClientFigures
    late_s: float
    lag_s: tuple[float, float, float]
    """How long after an execution 50 %, 95 % and 100 % of the online subscribers had its result."""
    cpu_s: tuple[float, float, float]
    """The processor time of the hour: the cluster, this broker, and this broker's clients."""
    replayed: bool = False
    """Whether a replay of the broker's trace under virtual time gave the same figures."""


async def run_hour(
    scenario: Scenario,
    end_s: float,
    cells: Sequence[LiveCell],
    speed: float,
    *,
    folder: Path,
    traces: Path,
    say: Say,
    drills: int = _DRILLS,
) -> dict[LiveCell, LiveHour]:
    """Runs the hour with a broker for each cell, after `drills` test reports. `folder` holds the servers
    and is deleted; the traces stay."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        async with LiveServers(folder) as servers:
            hours = await _play_hour(
                scenario, end_s, cells, speed, servers=servers, traces=traces, say=say, drills=drills
            )
    except BaseExceptionGroup as group:
        raise _first(group) from group
    # The traces are complete only after the servers have ended.
    replays = {cell: replay_trace(_trace(traces, cell)) for cell in cells}
    for cell, outcome in replays.items():
        for difference in outcome.differences:
            say(f"{cell.name}: replayed, not the same: {difference}")
    shutil.rmtree(folder, ignore_errors=True)
    return {cell: replace(hour, replayed=replays[cell].same) for cell, hour in hours.items()}


async def _play_hour(
    scenario: Scenario,
    end_s: float,
    cells: Sequence[LiveCell],
    speed: float,
    drills: int,
    *,
    servers: LiveServers,
    traces: Path,
    say: Say,
) -> dict[LiveCell, LiveHour]:
    began_s = perf_counter()
    say("starting a cluster")
    cluster = await servers.cluster()
    say(f"the cluster is ready after {perf_counter() - began_s:.0f} s; creating the seven channels")
    await servers.run(cluster, schema.script(speed))
    say(f"starting {len(cells)} broker{'s' if len(cells) > 1 else ''}")
    brokers: dict[LiveCell, LiveServer] = {}
    for cell in cells:
        _trace(traces, cell).unlink(missing_ok=True)
        name = f"Default.{cell.name.replace('-', '_').replace('.', '_')}"
        brokers[cell] = await servers.broker(name, cluster, _trace(traces, cell), cell.settings(speed))
    urls = {cell.name: server.url for cell, server in brokers.items()}
    async with asyncio.TaskGroup() as tasks:
        watch = tasks.create_task(servers.watch())
        async with LiveClients(scenario, urls, tasks) as clients:
            say("registering all subscribers at every broker")
            await clients.register(_at_tenths(lambda done, all_: say(f"registered: {done} of {all_}")))
            await _warm_up(clients, list(urls.values()), say, drills)
            before = {cell: await _figures(server) for cell, server in brokers.items()}
            used_before_s = _cpu_s(cluster, brokers)
            say(f"the hour begins: {end_s:g} s, {speed:g} times as fast, in {end_s / speed / 60:.1f} minutes")
            clock = WallClock(asyncio.get_running_loop().time, asyncio.sleep, speed=speed)
            late_s = await play(scenario, _ProgressReporter(clients, end_s, speed, say), clock)
            await clock.until(end_s)
            after = {cell: await _figures(server) for cell, server in brokers.items()}
            used_before_s = {name: now_s - used_before_s[name] for name, now_s in _cpu_s(cluster, brokers).items()}
            say("the hour is over")
            await clients.all_done()
        watch.cancel()
    lags_s = sorted(lag_s * speed for figures in clients.seen.values() for lag_s in figures.lags_s) or [0.0]
    quantiles_s = tuple(lags_s[min(len(lags_s) - 1, int(share * len(lags_s)))] for share in (0.5, 0.95, 1.0))
    return {
        cell: LiveHour(
            {name: after[cell][name] - before[cell][name] for name in after[cell]},
            clients.seen[cell.name],
            late_s,
            (quantiles_s[0], quantiles_s[1], quantiles_s[2]),
            (used_before_s["cluster"], used_before_s[cell.name], used_before_s["clients"] / len(cells)),
        )
        for cell in cells
    }


class _ProgressReporter:
    """Passes acts on to the clients, and reports the progress."""

    def __init__(self, clients: LiveClients, end_s: float, speed: float, say: Say) -> None:
        self._clients, self._end_s, self._speed, self._say = clients, end_s, speed, say
        self._next = _REPORT_EVERY
        self._lags = 0

    async def perform(self, act: Act, at_s: float) -> None:
        if at_s >= self._next * self._end_s:
            self._next = int(at_s / self._end_s / _REPORT_EVERY + 1) * _REPORT_EVERY
            self._report(at_s)
        await self._clients.perform(act, at_s)

    def _report(self, at_s: float) -> None:
        everybody = self._clients.seen.values()
        first = next(iter(everybody))
        newest = sorted(first.lags_s[self._lags :])
        self._lags = len(first.lags_s)
        late = f"; the median of the newest lags is {newest[len(newest) // 2] * self._speed:.1f} s" if newest else ""
        self._say(
            f"{at_s / self._end_s:4.0%} of the hour, {sum(figures.results for figures in everybody):,} results{late}"
        )


async def _warm_up(clients: LiveClients, urls: Sequence[str], say: Say, drills: int) -> None:
    """Sends a few reports through all channels that no subscriber gets, because first executions are slower."""
    say("warming up the channels")
    await clients.publish("LocationFeed", schema.location_record(_DRILL, _FAR_M, _FAR_M), visible=True)
    async with AsyncExitStack() as stack:
        drill_clients: list[tuple[Client, list[Subscription]]] = []
        for url in urls:
            client = await stack.enter_async_context(Client(url, _DRILL, PASSWORD, register=True))
            drill_clients.append((client, [await client.subscribe(*arguments) for arguments in _drills()]))
        record = {
            "emergencyType": _DRILL, "severity": 1, "message": "-",
            "east_m": _FAR_M, "north_m": _FAR_M, "radius_m": 10.0,
        }  # fmt: skip
        for _ in range(drills):
            began_s = perf_counter()
            await clients.publish("ReportFeed", schema.report_record(record))
            try:
                async with asyncio.timeout(_DRILL_LIMIT_S):
                    await asyncio.gather(*(_receive(client, len(CHANNELS)) for client, _ in drill_clients))
            except TimeoutError:
                raise UnavailableError(
                    f"not all channels had a result of a test report after {_DRILL_LIMIT_S:.0f} s"
                ) from None
            say(f"all channels had a result of a test report after {perf_counter() - began_s:.1f} s")
        for client, subscriptions in drill_clients:
            for subscription in subscriptions:
                await client.unsubscribe(subscription)


def _drills() -> list[tuple[str, list[Any]]]:
    values: dict[str, list[Any]] = {"type": [_DRILL], "place": [_FAR_M, _FAR_M], "user": [_DRILL]}
    return [
        (f"{schema.DATAVERSE}.{channel}", [value for kind in kinds.split() for value in values[kind]])
        for channel, kinds, _ in CHANNELS
    ]


async def _receive(client: Client, count: int) -> None:
    async for event in client.results():
        if isinstance(event, Result):
            count -= 1
            await client.ack(event)
            if not count:
                return


async def _figures(broker: LiveServer) -> dict[str, float]:
    """Returns the counters of the broker's caches."""
    session = BrokerSession(broker.url, None, token="-")  # noqa: S106 - on loopback everybody is the operator
    session.open()
    try:
        response = await session.call("GET", "/v1/policies", token=None)
    finally:
        await session.close()
    return {name: float(value) for name, value in response["counters"][response["policy"]].items()}


def _cpu_s(cluster: LiveServer, brokers: Mapping[LiveCell, LiveServer]) -> dict[str, float]:
    """Returns the processor time so far of the cluster, of each broker, and of the clients."""
    by_broker = {cell.name: server.cpu_s() for cell, server in brokers.items()}
    return {"cluster": cluster.cpu_s(), "clients": process_time(), **by_broker}


def _at_tenths(report: Callable[[int, int], None]) -> Callable[[int, int], None]:
    return lambda done, all_: report(done, all_) if done * 10 // all_ > (done - 1) * 10 // all_ else None


def _trace(traces: Path, cell: LiveCell) -> Path:
    return traces / f"{cell.name}.jsonl"


def _first(error: BaseException) -> BaseException:
    """Returns the first cause of an error group; our own errors come before their consequences."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    causes = [_first(member) for member in error.exceptions]
    return next((cause for cause in causes if isinstance(cause, TocsinError)), causes[0])
