"""What a feed's log holds of one request: the accepted records as Arrow, the refused ones with their reasons."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
import pyarrow as pa

from tocsin.pipeline.datasets import layout
from tocsin.pipeline.readers.decoding import Decoded
from tocsin.rules.model.types import ObjectType

_LENGTH: Final = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Batch:
    rows: pa.Table
    refused: tuple[dict[str, Any], ...]


def packed(decoded: Sequence[Decoded], kind: ObjectType) -> bytes:
    rows = layout.to_arrow([one.record for one in decoded if one.record is not None], kind)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    body: bytes = sink.getvalue().to_pybytes()
    refused = [
        {"index": one.index, "field": one.field, "reason": one.reason, "record": one.raw.decode(errors="replace")}
        for one in decoded
        if one.record is None
    ]
    return _LENGTH.pack(len(body)) + body + (orjson.dumps(refused) if refused else b"")


def unpacked(payload: bytes) -> Batch:
    (length,) = _LENGTH.unpack_from(payload)
    start = _LENGTH.size
    with pa.ipc.open_stream(pa.py_buffer(payload[start : start + length])) as reader:
        rows = reader.read_all()
    rest = payload[start + length :]
    return Batch(rows, tuple(orjson.loads(rest)) if rest else ())
