"""Starts a cluster and a broker for the demo, in a new folder and on free ports."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from pathlib import Path
from time import perf_counter
from typing import Self

from rich.console import Console

START_LIMIT_S = 120.0
STOP_LIMIT_S = 30.0
_TICK_S = 3.0
# As `tocsin` from a terminal, with the Python that runs this.
_TOCSIN = (sys.executable, "-P", "-c", "from tocsin.cli.main import main; main()")


class DemoError(Exception):
    """An error that ends the demo; the message is for the user."""


class Servers:
    """A `tocsin up --brokers 1`: a cluster, and a broker that is restarted if it ends.

    Leaving the block stops both, whatever happened inside. `cluster` and `broker` are their addresses.
    """

    def __init__(self, folder: Path, console: Console) -> None:
        self._folder = folder.resolve()
        self._log = self._folder.with_name(f"{folder.name}.log")
        self._console = console
        self._began_s = perf_counter()
        self.cluster = self.broker = ""

    async def __aenter__(self) -> Self:
        """Returns when both are ready."""
        self._folder.mkdir(parents=True, exist_ok=True)
        # With the default settings: neither the caller's variables nor a settings file where the demo was started.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TOCSIN_")}
        # Java's second compiler costs two fifths of all CPU, which a run of minutes does not repay.
        environment.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")
        # A restarted broker must have the same address.
        environment["TOCSIN_BROKER__HTTP__PORT"] = str(_free_port())
        with self._log.open("wb") as log:
            # A session of its own: Ctrl-C reaches only the demo, which stops its servers when all results have arrived.
            self._process = await asyncio.create_subprocess_exec(
                *_TOCSIN, "up", "--brokers", "1", "--data", str(self._folder), "--port", "0",
                stdout=asyncio.subprocess.PIPE, stderr=log, cwd=self._folder, env=environment, start_new_session=True,
            )  # fmt: skip
        try:
            self.cluster, self.broker = await self._ready("cluster"), await self._ready("broker")
        except BaseException:
            await self._stop()
            raise
        return self

    async def ended(self) -> None:
        """Raises `DemoError` if the servers end too early."""
        await self._process.wait()
        raise DemoError(f"the cluster has ended:\n{self._log_tail()}")

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def _ready(self, what: str) -> str:
        assert self._process.stdout is not None
        line = asyncio.ensure_future(self._process.stdout.readline())
        while not (await asyncio.wait((line,), timeout=_TICK_S))[0]:
            waited_s = perf_counter() - self._began_s
            if waited_s > START_LIMIT_S:
                line.cancel()
                raise DemoError(f"the {what} was not ready after {waited_s:.0f} s:\n{self._log_tail()}")
            self._console.print(f"  … {'Spark' if what == 'cluster' else what} is starting ({waited_s:.0f} s)")
        first_line = line.result().decode()
        if f"tocsin {what}" not in first_line or " ready at " not in first_line:
            raise DemoError(f"the {what} did not start:\n{self._log_tail()}")
        address = first_line.split(" ready at ")[1].split()[0]
        self._console.print(f"  {what} ready at {address} after {perf_counter() - self._began_s:.1f} s")
        return address

    def _log_tail(self) -> str:
        return self._log.read_bytes()[-2_000:].decode(errors="replace").strip() or "its log is empty"

    async def _stop(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self._process.wait(), STOP_LIMIT_S)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        if self._process.returncode == 0:
            self._log.unlink(missing_ok=True)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
