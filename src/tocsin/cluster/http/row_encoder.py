"""Encodes an answer's rows as JSON."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from typing import Any, Final

import pyarrow as pa

from tocsin.cluster.statements.dml import decode_rows
from tocsin.language.translate.translator import TranslatedQuery
from tocsin.pipeline.result_json import result_json

TURN_ROWS: Final = 500


class RowEncoder:
    """Encodes on the statements' threads, a few rows at a time under one lock: each further thread that computes in
    Python makes the event loop wait longer for the interpreter lock."""

    def __init__(self, turn: AbstractContextManager[Any] | None = None) -> None:
        self._turn = turn or threading.Lock()

    def encode(self, rows: pa.Table, translated: TranslatedQuery) -> list[bytes]:
        encoded: list[bytes] = []
        for start in range(0, rows.num_rows, TURN_ROWS):
            with self._turn:
                encoded += map(result_json, decode_rows(rows.slice(start, TURN_ROWS), translated))
        return encoded
