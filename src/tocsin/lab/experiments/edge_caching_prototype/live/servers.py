"""Real servers for an hour: one cluster, and a broker for each policy, each a process, in a folder of their own."""

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

START_LIMIT_S: Final = 180.0
STOP_LIMIT_S: Final = 60.0
# As `tocsin` from a terminal, with the Python that runs this.
_TOCSIN: Final = (sys.executable, "-P", "-m", "tocsin.cli.main")


@dataclass(slots=True)
class LiveServer:
    """A process that serves until it is stopped."""

    name: str
    process: asyncio.subprocess.Process
    log: Path
    url: str = ""

    async def ended(self) -> None:
        """Raises when it ends before it should."""
        await self.process.wait()
        raise UnavailableError(f"the {self.name} has ended:\n{self.last_words()}")

    def cpu_s(self) -> float:
        """What it and its children have used so far; what has ended meanwhile is not counted."""
        used_s = 0.0
        with contextlib.suppress(psutil.Error):
            one = psutil.Process(self.process.pid)
            for each in (one, *one.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    times = each.cpu_times()
                    used_s += times.user + times.system
        return used_s

    async def stop(self) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self.process.wait(), STOP_LIMIT_S)
            except TimeoutError:
                self.process.kill()
                await self.process.wait()

    def last_words(self) -> str:
        return self.log.read_bytes()[-2_000:].decode(errors="replace").strip() or "it said nothing"


class LiveServers:
    """Leaving the block stops them all, whatever happened inside."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._started: list[LiveServer] = []

    async def __aenter__(self) -> Self:
        self.folder.mkdir(parents=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def cluster(self) -> LiveServer:
        """A cluster that is ready."""
        # A life of minutes does not repay what Java's second compiler costs: two fifths of all CPU.
        variables = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}
        return await self._start(
            "cluster", ("up", "--data", str(self.folder / "cluster"), "--port", "0", "--beside"), variables
        )

    async def broker(self, name: str, cluster: LiveServer, trace: Path, settings: Mapping[str, str]) -> LiveServer:
        """A broker that is ready; `settings` by their paths, such as `broker.cache.eviction`."""
        arguments = (
            "broker", "--name", name, "--data", str(self.folder / "brokers"), "--port", "0",
            "--cluster", cluster.url, "--trace", str(trace), "--beside",
        )  # fmt: skip
        variables = {f"TOCSIN_{path.replace('.', '__').upper()}": value for path, value in settings.items()}
        return await self._start("broker", arguments, variables, label=f"broker {name}")

    async def run(self, cluster: LiveServer, script: str) -> None:
        """Run statements. `TocsinError` with what was said where one fails."""
        process = await asyncio.create_subprocess_exec(
            *_TOCSIN, "sql", "--url", cluster.url, env=_environment({}), cwd=self.folder,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            _, said = await process.communicate(script.encode())
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        if process.returncode:
            raise TocsinError(f"the cluster refused a statement:\n{said.decode(errors='replace').strip()}")

    async def ended(self) -> None:
        """Raises when one of them ends before it should."""
        async with asyncio.TaskGroup() as tasks:
            for one in self._started:
                tasks.create_task(one.ended())

    async def stop(self) -> None:
        """The brokers first, so that none looks for its cluster."""
        brokers = [one for one in self._started if one.name != "cluster"]
        await _all_stopped(brokers)
        await _all_stopped(one for one in self._started if one.name == "cluster")
        self._started.clear()

    async def _start(
        self, what: str, arguments: Iterable[str], variables: Mapping[str, str], label: str = ""
    ) -> LiveServer:
        name = label or what
        log = self.folder / f"{name.replace(' ', '-')}.log"
        with log.open("wb") as file:
            # In a session of its own: Ctrl-C is for us, who stop our servers in order.
            process = await asyncio.create_subprocess_exec(
                *_TOCSIN, *arguments, env=_environment(variables), cwd=self.folder, start_new_session=True,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=file,
            )  # fmt: skip
        made = LiveServer(name, process, log)
        self._started.append(made)
        assert process.stdout is not None
        try:
            said = (await asyncio.wait_for(process.stdout.readline(), START_LIMIT_S)).decode()
        except TimeoutError:
            raise UnavailableError(f"the {name} was not ready after {START_LIMIT_S:.0f} s") from None
        if f"tocsin {what}" not in said or " ready at " not in said:
            raise UnavailableError(f"the {name} did not start:\n{made.last_words()}")
        made.url = said.split(" ready at ")[1].split()[0]
        return made


async def _all_stopped(servers: Iterable[LiveServer]) -> None:
    await asyncio.gather(*(one.stop() for one in servers))


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    """With the default settings: neither the caller's variables nor a settings file where it was started."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOCSIN_")}
    # An entry that is no folder's full name would be one relative to the child's.
    path = os.pathsep.join(str(Path(each).absolute()) for each in sys.path if each)
    return {**kept, "PYTHONPATH": path, **more}
