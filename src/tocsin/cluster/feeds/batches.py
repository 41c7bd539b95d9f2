"""What a feed's log holds of one request: the accepted records as Arrow, the refused ones with their reasons.

    payload   length │ records, as an Arrow stream │ refused, as JSON; {"refused", "seen"} of a poll

What a poll found has the marks of its items with it, so that items and the memory of them become durable as one.
"""

from __future__ import annotations

import struct
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
import pyarrow as pa

from tocsin.pipeline.datasets import layout
from tocsin.pipeline.readers.decoding import Decoded
from tocsin.rules.model.types import ObjectType

_LENGTH: Final = struct.Struct("<Q")
MARK_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Batch:
    rows: pa.Table
    refused: tuple[dict[str, Any], ...]


def packed(decoded: Sequence[Decoded], kind: ObjectType, seen: Sequence[bytes] = ()) -> bytes:
    """`seen` are the marks of the items that these are, each of `MARK_BYTES`."""
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
    rest = b""
    if seen:
        rest = orjson.dumps({"refused": refused, "seen": b64encode(b"".join(seen)).decode()})
    elif refused:
        rest = orjson.dumps(refused)
    return _LENGTH.pack(len(body)) + body + rest


def unpacked(payload: bytes) -> Batch:
    (length,) = _LENGTH.unpack_from(payload)
    start = _LENGTH.size
    with pa.ipc.open_stream(pa.py_buffer(payload[start : start + length])) as reader:
        rows = reader.read_all()
    rest = _rest(payload)
    return Batch(rows, tuple(rest["refused"] if isinstance(rest, dict) else rest))


def seen_in(payload: bytes) -> list[bytes]:
    """The marks that were packed with it."""
    rest = _rest(payload)
    if not isinstance(rest, dict):
        return []
    marks = b64decode(rest["seen"])
    return [marks[at : at + MARK_BYTES] for at in range(0, len(marks), MARK_BYTES)]


def _rest(payload: bytes) -> Any:
    (length,) = _LENGTH.unpack_from(payload)
    rest = payload[_LENGTH.size + length :]
    return orjson.loads(rest) if rest else ()
