"""Buffers an answer that is produced faster than the client reads it: a little in memory, the rest in temporary files.

    script ─▶ put ─▶ memory, then files in the order of writing ─▶ take ─▶ client

So a script ends when its rows are produced, however slowly the client reads. Only when the files of all answers reach
their limit does the script wait for its client (backpressure), for a bounded time.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from tocsin.patience import wait_despite_cancel
from tocsin.wire.errors import LimitError

_MEMORY_BYTES: Final = 1 << 20
_LEAST_BYTES_PER_S: Final = 1 << 20
"""The script waits without a limit for a client that reads at least this fast."""
_FILE_BYTES: Final = 16 << 20
_READ_BYTES: Final = 1 << 18


@dataclass(slots=True)
class _File:
    content: IO[bytes]
    size_bytes: int = 0
    read_bytes: int = 0

    @property
    def is_read(self) -> bool:
        return self.read_bytes == self.size_bytes

    def write(self, some: bytes) -> None:
        written = 0
        while written < len(some):
            written += os.pwrite(self.content.fileno(), some[written:], self.size_bytes + written)
        self.size_bytes += written

    def read(self) -> bytes:
        return os.pread(self.content.fileno(), min(_READ_BYTES, self.size_bytes - self.read_bytes), self.read_bytes)


class ResponseSpool:
    """A queue for one producer and one consumer. `grow` gets the size of the files, and raises LimitError above the
    limit. `patience_s` is the total time that the script may wait for a slow client."""

    def __init__(
        self,
        grow: Callable[[int], None],
        *,
        patience_s: float,
        folder: Path | None = None,
        memory_bytes: int = _MEMORY_BYTES,
    ) -> None:
        self._grow = grow
        self._patience_s = patience_s
        self._folder = folder
        self._memory_limit_bytes = memory_bytes
        self._memory: deque[bytes] = deque()
        self._memory_bytes = 0
        self._files: deque[_File] = deque()
        self._writing = False  # the last file is being written, so it stays
        self._taken_bytes = 0
        self._ended = False
        self._last = b""
        self._broken: BaseException | None = None
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()

    async def put(self, some: bytes) -> None:
        """Adds a piece. ConnectionResetError if nobody reads any more, LimitError if the client is too slow."""
        self._check()
        if not self._files and self._memory_bytes + len(some) <= self._memory_limit_bytes:
            self._memory.append(some)
            self._memory_bytes += len(some)
        else:
            await self._have_room(len(some))
            self._writing = True
            try:
                await wait_despite_cancel(asyncio.to_thread(self._write, some))
            finally:
                self._writing = False
        self._filled.set()

    def end(self, last: bytes = b"") -> None:
        """Ends the answer. `last` comes after all pieces, and always fits."""
        self._last = last
        self._ended = True
        self._filled.set()

    async def take(self) -> bytes | None:
        """Returns the next piece; None at the end."""
        while True:
            if self._memory:
                piece = self._memory.popleft()
                self._memory_bytes -= len(piece)
                return piece
            self._drop_read()
            if self._files and not self._files[0].is_read:
                return await self._take_from(self._files[0])
            if self._ended:
                last, self._last = self._last, b""
                return last or None
            self._filled.clear()
            await self._filled.wait()

    def break_off(self, error: BaseException) -> None:
        """Reports that nobody reads any more."""
        self._broken = error
        self._emptied.set()

    def close(self) -> None:
        """Deletes the files."""
        while self._files:
            self._files.popleft().content.close()

    async def _take_from(self, file: _File) -> bytes:
        piece = await wait_despite_cancel(asyncio.to_thread(file.read))
        file.read_bytes += len(piece)
        self._taken_bytes += len(piece)
        self._drop_read()
        self._emptied.set()
        return piece

    def _drop_read(self) -> None:
        """Deletes the files that are read, except the one that is being written."""
        while self._files and self._files[0].is_read and (len(self._files) > 1 or not self._writing):
            self._files.popleft().content.close()
            self._grow(self._size_bytes())

    async def _have_room(self, more_bytes: int) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            try:
                self._grow(self._size_bytes() + more_bytes)
                return
            except LimitError as full:
                began_s, taken_before_bytes = clock(), self._taken_bytes
                self._emptied.clear()
                try:
                    async with asyncio.timeout(self._patience_s):
                        await self._emptied.wait()
                except TimeoutError:
                    raise LimitError(
                        f"the client reads too slowly: {full.message}", status=429, retry=True, retry_after_s=1,
                        hint="read faster, ask for less with LIMIT, or raise cluster.statements.spool_limit_bytes",
                    ) from None  # fmt: skip
                self._check()
                waited_s = clock() - began_s
                self._patience_s -= max(0.0, waited_s - (self._taken_bytes - taken_before_bytes) / _LEAST_BYTES_PER_S)

    def _size_bytes(self) -> int:
        return sum(file.size_bytes for file in self._files)

    def _write(self, some: bytes) -> None:
        if not self._files or self._files[-1].size_bytes >= _FILE_BYTES:
            file = tempfile.TemporaryFile(dir=self._folder, prefix="answer-", buffering=0)  # noqa: SIM115
            self._files.append(_File(file))
        self._files[-1].write(some)

    def _check(self) -> None:
        if self._broken is not None:
            raise ConnectionResetError("the client does not read") from self._broken
