"""Starts a real broker in a process of its own, with a cluster without Spark: real stores, the real HTTP server, and
real, signed announcements of executions that the benchmark makes."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import psutil

from tests.support.sparkless_cluster import SparklessCluster
from tocsin.broker.accounts.sessions import SessionTokens
from tocsin.cluster.catalog.entries import ChannelEntry
from tocsin.compose_broker import broker_file
from tocsin.settings import Settings
from tocsin.store.broker.sqlite.store import SqliteBrokerStore
from tocsin.wire.subscriber import DEFAULT_APPLICATION

TOKEN_S: Final = 36_000.0


@dataclass(frozen=True, slots=True)
class Server:
    """A process that listens."""

    address: str
    process: psutil.Process

    def cpu_s(self) -> float:
        used = self.process.cpu_times()
        return float(used.user + used.system)

    def memory_bytes(self) -> int:
        return int(self.process.memory_info().rss)


@asynccontextmanager
async def server(*command: str, env: Mapping[str, str] | None = None) -> AsyncIterator[Server]:
    """Started, and ready: its first line ends with its port, or names its address."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *command, stdout=PIPE, env={**os.environ, **(env or {})}
    )
    try:
        assert process.stdout is not None
        ready = (await process.stdout.readline()).decode().strip()
        address = f"http://127.0.0.1:{ready}" if ready.isdigit() else ready.partition(" ready at ")[2].partition(" ")[0]
        if not address:
            raise RuntimeError(f"{command} did not start")
        yield Server(address, psutil.Process(process.pid))
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@asynccontextmanager
async def broker(data: Path, cluster: str, **chosen: object) -> AsyncIterator[Server]:
    """`tocsin broker` before this cluster. `chosen`: settings of the section `broker`, with __ for dots."""
    settings = {f"TOCSIN_BROKER__{name.upper()}": str(value) for name, value in chosen.items()}
    command = ("tocsin.cli.main", "broker", "--data", str(data), "--port", "0", "--cluster", cluster)
    async with server(*command, env=settings) as started, aiohttp.ClientSession() as session:
        async with asyncio.timeout(60):
            while True:
                async with session.get(f"{started.address}/readyz?cluster=1") as answer:
                    if answer.status == 200:
                        break
                await asyncio.sleep(0.05)
        yield started


async def accounts(data: Path, count: int, prefix: str = "user") -> list[str]:
    """Registers subscribers in the file of the broker that will be started there, all with a password that is
    none, and logs them in: their tokens."""
    data.mkdir(parents=True, exist_ok=True)
    store = SqliteBrokerStore(broker_file(Settings.load(None, {}, {"data": data})))
    await store.open()
    try:
        tokens = SessionTokens(store, TOKEN_S, TOKEN_S, lambda: time.time_ns() // 1_000)
        await tokens.open()
        (application,) = [
            application.id for application in await store.applications() if application.name == DEFAULT_APPLICATION
        ]
        now_us = time.time_ns() // 1_000
        made = await asyncio.gather(
            *[
                store.add_subscriber(application, f"{prefix}{number}", password="none", created_us=now_us)
                for number in range(count)
            ]
        )
        return [tokens.issue(subscriber.id, now_us)[0] for subscriber in made]
    finally:
        await store.close()


async def interest(address: str, token: str, channel: str, *parameters: Any) -> int:
    """Subscribes; the number of the interest."""
    asked = {"channel": channel, "parameters": list(parameters)}
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session,
        session.post(f"{address}/v1/subscriptions", json=asked) as answer,
    ):
        said = await answer.json()
        if answer.status not in (200, 201):
            raise RuntimeError(f"{answer.status}: {said}")
        return int(said["interest"])


async def publish(world: SparklessCluster, channel: ChannelEntry, interest: int, size_bytes: int) -> None:
    await world.execute(channel, {interest: [result(size_bytes)]})


def result(size_bytes: int) -> dict[str, object]:
    """A result of about this size, which tells when it was made."""
    return {"t": time.time_ns() // 1_000, "kind": "flood", "severity": 3, "text": "x" * (size_bytes - 62)}
