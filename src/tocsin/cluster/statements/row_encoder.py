"""Encodes an answer's rows as JSON.

Encoding computes in Python and so competes with the event loop for the interpreter lock; its threads take turns, a few
rows at a time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

import pyarrow as pa

from tocsin.cluster.statements.dml import decode_rows
from tocsin.language.translate.translator import TranslatedQuery
from tocsin.pipeline.result_json import result_json
from tocsin.uncancellable import wait_despite_cancel

ENCODED_AT_ONCE_ROWS: Final = 500
_PIECE_BYTES: Final = 256 << 10

_T = TypeVar("_T")


class RowEncoder:
    """Encodes a few rows at a time under one lock: each further thread that computes in Python makes the event loop
    wait longer for the interpreter lock. Streamed answers share one thread, and take turns by the piece."""

    def __init__(self, turn: AbstractContextManager[Any] | None = None) -> None:
        self._turn = turn or threading.Lock()
        self._thread = ThreadPoolExecutor(1, "row-encoder")

    def encode(self, rows: pa.Table, translated: TranslatedQuery) -> list[bytes]:
        encoded: list[bytes] = []
        for start in range(0, rows.num_rows, ENCODED_AT_ONCE_ROWS):
            with self._turn:
                encoded += map(result_json, decode_rows(rows.slice(start, ENCODED_AT_ONCE_ROWS), translated))
        return encoded

    async def stream(
        self, batches: Iterator[pa.RecordBatch], translated: TranslatedQuery
    ) -> AsyncIterator[list[bytes]]:
        """Yields the rows of a streamed answer, a piece at a time: more would wait in memory for a slow client."""

        def pieces() -> Iterator[list[bytes]]:
            for batch in batches:
                rows = pa.Table.from_batches([batch])
                step = max(1, rows.num_rows * _PIECE_BYTES // (rows.nbytes or 1))
                for start in range(0, rows.num_rows, step):
                    yield self.encode(rows.slice(start, step), translated)

        encoded = pieces()
        while (piece := await self.run(lambda: next(encoded, None))) is not None:
            yield piece

    async def run(self, work: Callable[[], _T]) -> _T:
        """Runs on the thread of streamed answers."""
        return await wait_despite_cancel(asyncio.get_running_loop().run_in_executor(self._thread, work))

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
