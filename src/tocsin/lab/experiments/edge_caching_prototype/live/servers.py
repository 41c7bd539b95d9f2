"""Starts real servers for an hour: one cluster, and a broker for each policy, each a process, in their own folder.

The servers are processes of the command `tocsin`, so that a live run takes the way of the real system, with its stores,
its wire and Spark. They stop when this process ends, however it ends (`--exit-with-stdin`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import psutil  # type: ignore[import-untyped]

from tocsin.wire.errors import TocsinError, UnavailableError

_START_LIMIT_S: Final = 180.0
_STOP_LIMIT_S: Final = 60.0
# The command `tocsin`, with the Python that runs this.
_TOCSIN: Final = (sys.executable, "-P", "-m", "tocsin.cli.main")


@dataclass(slots=True)
class LiveServer:
    """A process that serves until it is stopped."""

    name: str
    process: asyncio.subprocess.Process
    log: Path
    url: str = ""

    async def watch(self) -> None:
        """Raises if the server ends too early."""
        await self.process.wait()
        raise UnavailableError(f"the {self.name} has ended:\n{self.log_tail()}")

    def cpu_s(self) -> float:
        """Returns the processor time of the process and its children so far; children that have ended do not count."""
        used_s = 0.0
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.process.pid)
            for member in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    times = member.cpu_times()
                    used_s += times.user + times.system
        return used_s

    async def stop(self) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self.process.wait(), _STOP_LIMIT_S)
            except TimeoutError:
                self.process.kill()
                await self.process.wait()

    def log_tail(self) -> str:
        return self.log.read_bytes()[-2_000:].decode(errors="replace").strip() or "its log is empty"


class LiveServers:
    """A context that stops all servers at its end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._started: list[LiveServer] = []

    async def __aenter__(self) -> Self:
        self.folder.mkdir(parents=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def cluster(self) -> LiveServer:
        """Starts a cluster, and returns when it is ready."""
        # Java's second compiler costs two fifths of all CPU, which a run of minutes does not repay.
        variables = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}
        return await self._start(
            "cluster", ("up", "--data", str(self.folder / "cluster"), "--port", "0", "--exit-with-stdin"), variables
        )

    async def broker(self, name: str, cluster: LiveServer, trace: Path, settings: Mapping[str, str]) -> LiveServer:
        """Starts a broker, and returns when it is ready; `settings` by their paths, such as `broker.cache.eviction`."""
        arguments = (
            "broker", "--name", name, "--data", str(self.folder / "brokers"), "--port", "0",
            "--cluster", cluster.url, "--trace", str(trace), "--exit-with-stdin",
        )  # fmt: skip
        variables = {f"TOCSIN_{path.replace('.', '__').upper()}": value for path, value in settings.items()}
        return await self._start("broker", arguments, variables, label=f"broker {name}")

    async def run(self, cluster: LiveServer, script: str) -> None:
        """Runs statements. Raises `TocsinError` with the output if one fails."""
        process = await asyncio.create_subprocess_exec(
            *_TOCSIN, "sql", "--url", cluster.url, env=_environment({}), cwd=self.folder,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            _, stderr = await process.communicate(script.encode())
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        if process.returncode:
            raise TocsinError(f"the cluster refused a statement:\n{stderr.decode(errors='replace').strip()}")

    async def watch(self) -> None:
        """Raises if one of the servers ends too early."""
        async with asyncio.TaskGroup() as tasks:
            for server in self._started:
                tasks.create_task(server.watch())

    async def stop(self) -> None:
        """Stops the brokers first, so that none looks for its cluster."""
        brokers = [server for server in self._started if server.name != "cluster"]
        await _stop_all(brokers)
        await _stop_all(server for server in self._started if server.name == "cluster")
        self._started.clear()

    async def _start(
        self, what: str, arguments: Iterable[str], variables: Mapping[str, str], label: str = ""
    ) -> LiveServer:
        name = label or what
        log = self.folder / f"{name.replace(' ', '-')}.log"
        with log.open("wb") as file:
            # A session of its own keeps Ctrl-C from the servers: this process stops them in order.
            process = await asyncio.create_subprocess_exec(
                *_TOCSIN, *arguments, env=_environment(variables), cwd=self.folder, start_new_session=True,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=file,
            )  # fmt: skip
        server = LiveServer(name, process, log)
        self._started.append(server)
        assert process.stdout is not None
        try:
            first_line = (await asyncio.wait_for(process.stdout.readline(), _START_LIMIT_S)).decode()
        except TimeoutError:
            raise UnavailableError(f"the {name} was not ready after {_START_LIMIT_S:.0f} s") from None
        if f"tocsin {what}" not in first_line or " ready at " not in first_line:
            raise UnavailableError(f"the {name} did not start:\n{server.log_tail()}")
        server.url = first_line.split(" ready at ")[1].split()[0]
        return server


async def _stop_all(servers: Iterable[LiveServer]) -> None:
    await asyncio.gather(*(server.stop() for server in servers))


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment with default settings: without the caller's TOCSIN_ variables."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TOCSIN_")}
    # Make the paths absolute: the child has another working directory.
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if entry)
    return {**inherited, "PYTHONPATH": path, **more}
