"""The file format of an intake log: a header per segment, a frame per entry.

    segment   magic  check  version  salt  first
    frame     magic  check of the head  check of the body  first  rows  at_s  synced  lengths │ key  answer  payload

`synced` is the synced size of the segment when the frame was written. It tells a torn tail from damage. A write begins
only after the previous write was synced, so a whole frame that says "the bytes up to here were synced" proves that a
broken frame below was once whole, and acknowledged. Of the last write nothing proves that: if the file ends before its
frame does, it is torn; if the frame is there in its full length and fails its check, it may be either. The checksums
start from the segment's random salt, so bytes that a publisher sends cannot pass for a frame.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import BinaryIO, Final, Protocol
from zlib import crc32

VERSION: Final = 1
KEY_LIMIT_BYTES: Final = 1024
BODY_LIMIT_BYTES: Final = (1 << 32) - 1

_SEGMENT: Final = struct.Struct("<8sIIIQ")
_SEGMENT_MAGIC: Final = b"TOCSINLG"
_SEGMENT_CHECKED: Final = struct.Struct("<IIQ")
SEGMENT_HEAD_BYTES: Final = _SEGMENT.size

FRAME_MAGIC: Final = b"\xf5tfr"
_CHECK: Final = struct.Struct("<4sI")
_FIELDS: Final = struct.Struct("<IQIdQHII")
FRAME_HEAD_BYTES: Final = _CHECK.size + _FIELDS.size
_NO_KEY: Final = 0xFFFF


class DamagedBytesError(Exception):
    """The bytes differ from what was written; the text says how."""


class CutShortError(DamagedBytesError):
    """The bytes end before the frame does."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """The content of one append: the records `first` … `first + rows - 1`."""

    first: int
    rows: int
    payload: bytes
    key: str | None
    answer: bytes
    at_s: float

    @property
    def end(self) -> int:
        """The position after the entry."""
        return self.first + self.rows


class LogObserver(Protocol):
    """Keeps a fact about every entry of a log for longer than the log keeps the entry."""

    def recall(self, entry: LogEntry) -> None:
        """Receives each entry in order: those in the log when it opens, and later each new one when it is durable,
        before its append returns. The log holds its lock during the call."""

    def keep(self, position: int) -> None:
        """Saves what the observer needs of the entries below the position. The log deletes them when this returns."""


@dataclass(frozen=True, slots=True)
class _LogFrame:
    entry: LogEntry
    synced_bytes: int
    size_bytes: int


def new_salt() -> int:
    return int.from_bytes(os.urandom(4), "little")


def segment_head(first: int, salt: int, version: int = VERSION) -> bytes:
    fields = _SEGMENT_CHECKED.pack(version, salt, first)
    return _SEGMENT_MAGIC + crc32(fields).to_bytes(4, "little") + fields


def read_segment_head(head: bytes) -> tuple[int, int, int]:
    """Returns version, salt and first position of a segment."""
    if len(head) < SEGMENT_HEAD_BYTES:
        raise DamagedBytesError("its head is cut short")
    magic, check, version, salt, first = _SEGMENT.unpack(head)
    if magic != _SEGMENT_MAGIC:
        raise DamagedBytesError("it is not a segment of a log")
    if check != crc32(head[12:]):
        raise DamagedBytesError("its head fails its check")
    return version, salt, first


def encode_key(key: str | None) -> bytes | None:
    # A header may hold bytes that are not UTF-8; they come back unchanged.
    return None if key is None else key.encode("utf-8", "surrogatepass")


def frame_parts(entry: LogEntry, key: bytes | None, synced_bytes: int, salt: int) -> tuple[bytes, bytes, bytes, bytes]:
    """Returns a frame's head, key, answer and payload, in writing order. `key` is the encoded key."""
    body_key = key or b""
    body_check = crc32(entry.payload, crc32(entry.answer, crc32(body_key, salt)))
    fields = _FIELDS.pack(
        body_check,
        entry.first,
        entry.rows,
        entry.at_s,
        synced_bytes,
        _NO_KEY if key is None else len(key),
        len(entry.answer),
        len(entry.payload),
    )
    return _CHECK.pack(FRAME_MAGIC, crc32(fields, salt)) + fields, body_key, entry.answer, entry.payload


def read_frame(file: BinaryIO, room_bytes: int, salt: int) -> _LogFrame:
    """Reads the frame at the file's current offset. It must end within `room_bytes`."""
    head = file.read(min(FRAME_HEAD_BYTES, room_bytes))
    if len(head) < FRAME_HEAD_BYTES:
        raise CutShortError("a frame's head is cut short")
    magic, check = _CHECK.unpack_from(head)
    if magic != FRAME_MAGIC:
        raise DamagedBytesError("there is no frame")
    fields = head[_CHECK.size :]
    if check != crc32(fields, salt):
        raise DamagedBytesError("a frame's head fails its check")
    body_check, first, rows, at_s, synced_bytes, key_bytes, answer_bytes, payload_bytes = _FIELDS.unpack(fields)
    has_key = key_bytes != _NO_KEY
    key_bytes = key_bytes if has_key else 0
    body_bytes = key_bytes + answer_bytes + payload_bytes
    if body_bytes > room_bytes - FRAME_HEAD_BYTES:
        raise CutShortError("a frame is cut short")
    key, answer, payload = file.read(key_bytes), file.read(answer_bytes), file.read(payload_bytes)
    if body_check != crc32(payload, crc32(answer, crc32(key, salt))):
        raise DamagedBytesError("a frame fails its check")
    key_text = key.decode("utf-8", "surrogatepass") if has_key else None
    return _LogFrame(
        LogEntry(first, rows, payload, key_text, answer, at_s), synced_bytes, FRAME_HEAD_BYTES + body_bytes
    )
