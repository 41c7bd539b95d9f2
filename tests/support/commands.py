"""`tocsin` commands in processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from tests.support.waiting import WITHIN_S

ROOT = Path(__file__).parents[2]


class Command:
    """A `tocsin` command in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def line(self) -> str:
        assert self._process.stdout is not None
        async with asyncio.timeout(WITHIN_S):
            return (await self._process.stdout.readline()).decode().rstrip("\n")

    async def said(self) -> str:
        assert self._process.stderr is not None
        async with asyncio.timeout(WITHIN_S):
            return (await self._process.stderr.readline()).decode().rstrip("\n")

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    async def ended(self) -> tuple[int, str, str]:
        async with asyncio.timeout(WITHIN_S):
            out, err = await self._process.communicate()
        assert self._process.returncode is not None
        return self._process.returncode, out.decode(), err.decode()


@contextlib.asynccontextmanager
async def command(*arguments: str, **environment: str) -> AsyncIterator[Command]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tocsin.cli.main", *arguments,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment}, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield Command(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
