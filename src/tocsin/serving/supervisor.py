"""Supervises processes: restarts a process that ends, with exponential back-off while it keeps failing.

A broker whose name another broker has taken over is not restarted, because it would stop at once each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from tocsin.rules.backoff import BackOff
from tocsin.wire.errors import EXIT_FENCED

_FIRST_PAUSE_S: Final = 0.5
_LAST_PAUSE_S: Final = 30.0
_STAYED_S: Final = 10.0
"""A process that ran longer counts as stable, and the back-off starts again."""
_STOP_S: Final = 15.0

_log = structlog.get_logger("tocsin.supervisor")


@dataclass(frozen=True, slots=True)
class Command:
    """The command to run, with its whole environment. Its standard input is a pipe that closes when we end."""

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str]


class Supervisor:
    """Runs commands as child processes until it is stopped."""

    def __init__(self, *, first_pause_s: float = _FIRST_PAUSE_S, stayed_s: float = _STAYED_S) -> None:
        self._first_pause_s = first_pause_s
        self._stayed_s = stayed_s
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, commands: Sequence[Command]) -> None:
        loop = asyncio.get_running_loop()
        self._tasks += [loop.create_task(self._keep(command)) for command in commands]

    async def stop(self) -> None:
        """Stops all processes and returns when they have ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _keep(self, command: Command) -> None:
        """Runs the command again and again, with back-off, until it is fenced or cancelled."""
        back_off = BackOff(self._first_pause_s, _LAST_PAUSE_S)
        while True:
            began_s = time.monotonic()
            try:
                code = await self._run(command)
                if code == EXIT_FENCED:
                    _log.error("a broker ended and is not restarted: another took over its name", name=command.name)
                    return
                reason = f"it ended with {code}"
            except OSError as error:
                reason = str(error)
            if time.monotonic() - began_s >= self._stayed_s:
                back_off.reset()
            pause_s = back_off.next_s()
            _log.warning("a process ended and is restarted", name=command.name, why=reason, after_s=round(pause_s, 1))
            await asyncio.sleep(pause_s)

    async def _run(self, command: Command) -> int:
        process = await asyncio.create_subprocess_exec(
            *command.arguments, env=dict(command.environment), stdin=asyncio.subprocess.PIPE
        )
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                await asyncio.shield(_end(process))


async def _end(process: asyncio.subprocess.Process) -> None:
    """Asks the process to stop, and kills it after _STOP_S."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
