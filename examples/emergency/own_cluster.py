"""A cluster of the demo's own: a `tocsin up` process with a folder and a port that nobody else uses."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from time import perf_counter

from rich.console import Console

START_LIMIT_S = 120.0
STOP_LIMIT_S = 30.0
_TICK_S = 3.0
# As `tocsin up` from a terminal, with the Python that runs this.
_TOCSIN = (sys.executable, "-P", "-c", "from tocsin.cli.main import main; main()")


class DemoError(Exception):
    """What went wrong, in words for the person who watches."""


class Cluster:
    """A `tocsin up` process; leaving the block stops it, whatever happened inside."""

    def __init__(self, folder: Path, console: Console) -> None:
        self._folder = folder.resolve()
        self._log = self._folder.with_name(f"{folder.name}.log")
        self._console = console

    async def __aenter__(self) -> str:
        """Its address, once it is ready."""
        self._folder.mkdir(parents=True, exist_ok=True)
        # With the default settings: neither the caller's variables nor a settings file where the demo was started.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TOCSIN_")}
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *_TOCSIN, "up", "--data", str(self._folder), "--port", "0",
                stdout=asyncio.subprocess.PIPE, stderr=log, cwd=self._folder, env=environment,
            )  # fmt: skip
        try:
            return await self._ready()
        except BaseException:
            await self._stop()
            raise

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def _ready(self) -> str:
        assert self._process.stdout is not None
        began_s = perf_counter()
        line = asyncio.ensure_future(self._process.stdout.readline())
        while not (await asyncio.wait((line,), timeout=_TICK_S))[0]:
            waited_s = perf_counter() - began_s
            if waited_s > START_LIMIT_S:
                line.cancel()
                raise DemoError(f"the cluster was not ready after {waited_s:.0f} s:\n{self._last_words()}")
            self._console.print(f"  … Spark is starting ({waited_s:.0f} s)")
        said = line.result().decode()
        if " ready at " not in said:
            raise DemoError(f"the cluster did not start:\n{self._last_words()}")
        address = said.split(" ready at ")[1].split()[0]
        self._console.print(f"  ready at {address} after {perf_counter() - began_s:.1f} s")
        return address

    def _last_words(self) -> str:
        return self._log.read_bytes()[-2_000:].decode(errors="replace").strip() or "it said nothing"

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
