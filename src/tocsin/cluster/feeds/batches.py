"""Encodes the records of one request as the payload of a log entry: accepted records, and refused ones with reasons.

    payload   length │ records │ refused, as JSON; {"refused", "seen"} of a poll

Many records are an Arrow stream. For a few records a schema and a stream would cost a hundred times as much as the
data, so they are text (the highest bit of the length says so), and become one table when they land.

The payload of a poll also carries the marks of its items, so that items and marks become durable in one write.
"""

from __future__ import annotations

import struct
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from io import BytesIO
from itertools import groupby
from typing import Any, Final

import orjson
import pyarrow as pa

from tocsin.pipeline.datasets import layout
from tocsin.pipeline.sources.decoder import DecodedRecord
from tocsin.rules.model.open_form import dumps_value, loads_value
from tocsin.rules.model.types import ObjectType

FEW: Final = 16
"""Up to this many records are written as text."""
MARK_BYTES: Final = 16
_LENGTH: Final = struct.Struct("<Q")
_IS_TEXT: Final = 1 << 63


def pack_batch(decoded: Sequence[DecodedRecord], kind: ObjectType, seen: Sequence[bytes] = ()) -> bytes:
    """Packs one batch. `seen` are the marks of its items, of `MARK_BYTES` each."""
    packing = BatchPacker(kind)
    packing.add(decoded)
    return packing.finish(seen)


class BatchPacker:
    """Builds a payload from successive batches, so that the caller need not hold all records at once."""

    def __init__(self, kind: ObjectType) -> None:
        self._kind = kind
        # The first bytes are reserved for the length. BytesIO returns its content without a copy.
        self._payload = BytesIO()
        self._payload.write(_LENGTH.pack(0))
        self._few: list[dict[str, Any]] | None = None  # the first batch, as long as it is the only batch
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None
        self._refused = BytesIO()

    def add(self, decoded: Sequence[DecodedRecord]) -> None:
        self._pack_refused([item for item in decoded if item.record is None])
        records = [item.record for item in decoded if item.record is not None]
        if self._few is None and self._writer is None and len(records) <= FEW:
            self._few = records
            return
        if self._few is not None:
            records, self._few = [*self._few, *records], None
        self._write(records)

    def _pack_refused(self, refused: Sequence[DecodedRecord]) -> None:
        if not refused:
            return
        # Encode all of them in one call: orjson allocates some KiB for each call, however small the value.
        encoded = orjson.dumps(
            [
                {
                    "index": item.index,
                    "field": item.field,
                    "reason": item.reason,
                    "record": item.raw.decode(errors="replace"),
                }
                for item in refused
            ]
        )
        self._refused.write(b"," if self._refused.tell() else b"[")
        self._refused.write(memoryview(encoded)[1:-1])

    def _write(self, records: Sequence[dict[str, Any]]) -> None:
        rows = layout.to_arrow(records, self._kind)
        if self._writer is None:
            self._writer = pa.ipc.new_stream(self._payload, rows.schema)
        self._writer.write_table(rows)

    def finish(self, seen: Sequence[bytes] = ()) -> bytes:
        if self._writer is not None:
            self._writer.close()
            length = self._payload.tell() - _LENGTH.size
        else:
            self._payload.write(dumps_value(self._few or []).encode())
            length = (self._payload.tell() - _LENGTH.size) | _IS_TEXT
        refused = self._refused.getbuffer()
        if seen:
            self._payload.write(b'{"refused":')
            self._payload.write(refused or b"[")
            self._payload.write(b'],"seen":"' + b64encode(b"".join(seen)) + b'"}')
        elif refused:
            self._payload.write(refused)
            self._payload.write(b"]")
        self._payload.seek(0)
        self._payload.write(_LENGTH.pack(length))
        return self._payload.getvalue()


def rows_in(payloads: Iterable[bytes], kind: ObjectType) -> tuple[pa.Table, list[int]]:
    """Returns the accepted records of all payloads, in their order, and the number of records of each payload."""
    tables: list[pa.Table] = []
    counts: list[int] = []
    for is_text, bodies in groupby(map(_records, payloads), key=lambda one: one[0]):
        if is_text:
            parts: list[list[dict[str, Any]]] = [loads_value(str(body, "utf-8")) for _, body in bodies]
            tables.append(layout.to_arrow([record for part in parts for record in part], kind))
            counts += map(len, parts)
        else:
            streams = [pa.ipc.open_stream(pa.py_buffer(body)).read_all() for _, body in bodies]
            tables += streams
            counts += [table.num_rows for table in streams]
    return pa.concat_tables(tables), counts


def read_refused(payload: bytes) -> Sequence[dict[str, Any]]:
    """The refused records, each with its index, field, reason and text."""
    rest = _rest(payload)
    refused: Sequence[dict[str, Any]] = rest["refused"] if isinstance(rest, dict) else rest
    return refused


def read_marks(payload: bytes) -> list[bytes]:
    """Returns the marks that were packed with the payload."""
    rest = _rest(payload)
    if not isinstance(rest, dict):
        return []
    marks = b64decode(rest["seen"])
    return [marks[start : start + MARK_BYTES] for start in range(0, len(marks), MARK_BYTES)]


def _records(payload: bytes) -> tuple[bool, memoryview]:
    """Returns whether the records are text, and their bytes."""
    length = _LENGTH.unpack_from(payload)[0]
    body = memoryview(payload)[_LENGTH.size : _LENGTH.size + (length & ~_IS_TEXT)]
    return bool(length & _IS_TEXT), body


def _rest(payload: bytes) -> Any:
    end = _LENGTH.size + (_LENGTH.unpack_from(payload)[0] & ~_IS_TEXT)
    return orjson.loads(payload[end:]) if len(payload) > end else ()
