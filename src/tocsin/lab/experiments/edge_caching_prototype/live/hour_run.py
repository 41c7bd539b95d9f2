"""One hour of a scenario, lived: servers are started, everybody registers, channels rehearse, and the driver plays."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Final

from tocsin.lab.experiments.edge_caching_prototype.live import schema
from tocsin.lab.experiments.edge_caching_prototype.live.cells import LiveCell
from tocsin.lab.experiments.edge_caching_prototype.live.clients import PASSWORD, ClientFigures, LiveClients
from tocsin.lab.experiments.edge_caching_prototype.live.servers import LiveServer, LiveServers
from tocsin.lab.scenarios.city import CHANNELS
from tocsin.lab.scenarios.driver import WallClock, play
from tocsin.lab.scenarios.scenario import Act, Scenario
from tocsin.lab.simulators.trace_replay import replay_trace
from tocsin.sdk import Client, Result
from tocsin.sdk.session import BrokerSession
from tocsin.wire.answers import Subscription
from tocsin.wire.errors import TocsinError, UnavailableError

Say = Callable[[str], None]

_DRILL: Final = "drill"
_DRILLS: Final = 3
_DRILL_LIMIT_S: Final = 120.0
_FAR_M: Final = -1e6  # where nobody of the city is
_TELL_EVERY: Final = 0.05  # of the hour


@dataclass(frozen=True, slots=True)
class LiveHour:
    """What an hour at one broker came to: the broker's own counts within it, and what its people saw.

    `late_s` and everything about executions are in seconds of the scenario.
    """

    figures: Mapping[str, float]
    seen: ClientFigures
    late_s: float
    lag_s: tuple[float, float, float]
    """Of what came to those who were there: how long after its execution half, 95 % and all of them had it."""
    cpu_s: tuple[float, float, float]
    """What the hour cost in processor time: the cluster, this broker, and everybody who was its client."""
    relived: bool
    """The core under virtual time, fed with the broker's trace, did the same."""


async def live(
    made: Scenario, end_s: float, cells: Sequence[LiveCell], speed: float, *, folder: Path, traces: Path, say: Say
) -> dict[LiveCell, LiveHour]:
    """Live through it at a broker for each cell. `folder` is for the servers and goes; traces stay."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        async with LiveServers(folder) as servers:
            lived = await _lived(made, end_s, cells, speed, servers=servers, traces=traces, say=say)
    except BaseExceptionGroup as group:
        raise _first(group) from group
    # The servers' last lines are in the traces only now.
    relived = {cell: replay_trace(_trace(traces, cell)) for cell in cells}
    for cell, done in relived.items():
        for difference in done.differences:
            say(f"{cell.name}: relived, not the same: {difference}")
    shutil.rmtree(folder, ignore_errors=True)
    return {cell: LiveHour(*counted, relived=relived[cell].same) for cell, counted in lived.items()}


_Three = tuple[float, float, float]
_Counted = tuple[Mapping[str, float], ClientFigures, float, _Three, _Three]


async def _lived(
    made: Scenario,
    end_s: float,
    cells: Sequence[LiveCell],
    speed: float,
    *,
    servers: LiveServers,
    traces: Path,
    say: Say,
) -> dict[LiveCell, _Counted]:
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
    urls = {cell.name: one.url for cell, one in brokers.items()}
    async with asyncio.TaskGroup() as tasks:
        watch = tasks.create_task(servers.ended())
        async with LiveClients(made, urls, tasks) as town:
            say("everybody registers, at every broker")
            await town.register(_tenths(lambda done, all_: say(f"registered: {done} of {all_}")))
            await _rehearse(town, list(urls.values()), say)
            before = {cell: await _figures(one) for cell, one in brokers.items()}
            used_s = _cpu_s(cluster, brokers)
            say(f"the hour begins: {end_s:g} s, {speed:g} times as fast, in {end_s / speed / 60:.1f} minutes")
            clock = WallClock(asyncio.get_running_loop().time, asyncio.sleep, speed=speed)
            late_s = await play(made, _Told(town, end_s, speed, say), clock)
            await clock.until(end_s)
            after = {cell: await _figures(one) for cell, one in brokers.items()}
            used_s = {name: now_s - used_s[name] for name, now_s in _cpu_s(cluster, brokers).items()}
            say("the hour is over")
            await town.all_done()
        watch.cancel()
    lags_s = sorted(lag_s * speed for seen in town.seen.values() for lag_s in seen.lags_s) or [0.0]
    spread = tuple(lags_s[min(len(lags_s) - 1, int(share * len(lags_s)))] for share in (0.5, 0.95, 1.0))
    return {
        cell: (
            {name: after[cell][name] - before[cell][name] for name in after[cell]},
            town.seen[cell.name],
            late_s,
            (spread[0], spread[1], spread[2]),
            (used_s["cluster"], used_s[cell.name], used_s["clients"] / len(cells)),
        )
        for cell in cells
    }


class _Told:
    """Says how far it is while it hands acts on."""

    def __init__(self, town: LiveClients, end_s: float, speed: float, say: Say) -> None:
        self._town, self._end_s, self._speed, self._say = town, end_s, speed, say
        self._next = _TELL_EVERY
        self._lags = 0

    async def perform(self, act: Act, at_s: float) -> None:
        if at_s >= self._next * self._end_s:
            self._next = int(at_s / self._end_s / _TELL_EVERY + 1) * _TELL_EVERY
            self._tell(at_s)
        await self._town.perform(act, at_s)

    def _tell(self, at_s: float) -> None:
        everybody = self._town.seen.values()
        first = next(iter(everybody))
        newest = sorted(first.lags_s[self._lags :])
        self._lags = len(first.lags_s)
        late = f"; the latest were told after {newest[len(newest) // 2] * self._speed:.1f} s" if newest else ""
        self._say(f"{at_s / self._end_s:4.0%} of the hour, {sum(one.results for one in everybody):,} results{late}")


async def _rehearse(town: LiveClients, urls: Sequence[str], say: Say) -> None:
    """A few reports that concern nobody of the city pass through all channels: what runs first takes longer."""
    say("the channels rehearse")
    await town.publish("LocationFeed", schema.location_record(_DRILL, _FAR_M, _FAR_M), visible=True)
    async with AsyncExitStack() as stack:
        held: list[tuple[Client, list[Subscription]]] = []
        for url in urls:
            client = await stack.enter_async_context(Client(url, _DRILL, PASSWORD, register=True))
            held.append((client, [await client.subscribe(*one) for one in _drills()]))
        record = {
            "emergencyType": _DRILL, "severity": 1, "message": "-",
            "east_m": _FAR_M, "north_m": _FAR_M, "radius_m": 10.0,
        }  # fmt: skip
        for _ in range(_DRILLS):
            began_s = perf_counter()
            await town.publish("ReportFeed", schema.report_record(record))
            try:
                async with asyncio.timeout(_DRILL_LIMIT_S):
                    await asyncio.gather(*(_heard(client, len(CHANNELS)) for client, _ in held))
            except TimeoutError:
                raise UnavailableError(f"a report was not told by all channels after {_DRILL_LIMIT_S:.0f} s") from None
            say(f"a report was told by all channels after {perf_counter() - began_s:.1f} s")
        for client, subscriptions in held:
            for one in subscriptions:
                await client.unsubscribe(one)


def _drills() -> list[tuple[str, list[Any]]]:
    values: dict[str, list[Any]] = {"type": [_DRILL], "place": [_FAR_M, _FAR_M], "user": [_DRILL]}
    return [
        (f"{schema.DATAVERSE}.{channel}", [value for kind in kinds.split() for value in values[kind]])
        for channel, kinds, _ in CHANNELS
    ]


async def _heard(client: Client, count: int) -> None:
    async for told in client.notifications():
        if isinstance(told, Result):
            count -= 1
            await client.ack(told)
            if not count:
                return


async def _figures(broker: LiveServer) -> dict[str, float]:
    """What its caches have done so far."""
    door = BrokerSession(broker.url, None, token="-")  # noqa: S106 - on loopback everybody is the operator
    door.open()
    try:
        said = await door.call("GET", "/v1/policies", token=None)
    finally:
        await door.close()
    return {name: float(value) for name, value in said["figures"][said["policy"]].items()}


def _cpu_s(cluster: LiveServer, brokers: Mapping[LiveCell, LiveServer]) -> dict[str, float]:
    """Processor time so far, of each broker and of all the rest."""
    used = {cell.name: one.cpu_s() for cell, one in brokers.items()}
    return {"cluster": cluster.cpu_s(), "clients": process_time(), **used}


def _tenths(tell: Callable[[int, int], None]) -> Callable[[int, int], None]:
    return lambda done, all_: tell(done, all_) if done * 10 // all_ > (done - 1) * 10 // all_ else None


def _trace(traces: Path, cell: LiveCell) -> Path:
    return traces / f"{cell.name}.jsonl"


def _first(error: BaseException) -> BaseException:
    """What went wrong first; an error of ours before what it brought about."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    every = [_first(one) for one in error.exceptions]
    return next((one for one in every if isinstance(one, TocsinError)), every[0])
