"""The pieces of a body; each is parsed when it is needed, because all values at once take many times its bytes.

A body of small values would otherwise use up the memory that its size in bytes was granted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tocsin.pipeline.sources.reader_types import BadRecord
from tocsin.rules.model.json_spans import MAX_DEPTH
from tocsin.rules.model.record_frames import Braces, FrameError
from tocsin.wire.errors import InputError, LimitError

_FRAMED_BYTES: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Limits of a body: a longer record is rejected by itself; a body with more records is rejected."""

    record_bytes: int = 1 << 20
    records: int = 100_000


class BodyPiece(NamedTuple):
    """A value, or why there is none; its text (None if it is not available), and its approximate length."""

    value: Any
    text: bytes | None
    size_bytes: int


UNREAD: Final = object()
"""The value of a text that is longer than a record may be, and is therefore not parsed."""


def split_body(text: bytes) -> Iterator[tuple[int | BadRecord, bytes]]:
    chunks = (text[at : at + _FRAMED_BYTES] for at in range(0, len(text), _FRAMED_BYTES))
    return split_records(chunks, Braces(len(text), MAX_DEPTH), "the body ends inside of the record that begins here")


def split_records(chunks: Iterable[bytes], braces: Braces, at_end: str) -> Iterator[tuple[int | BadRecord, bytes]]:
    """The records between balanced braces, each with its line; the last may be an unrecognisable rest. `at_end` is the
    reason for rejecting an incomplete last record."""
    for chunk in chunks:
        try:
            records = braces.feed_numbered(chunk)
        except FrameError as error:
            yield from error.numbered
            yield BadRecord(error.line, error.reason), b""
            return
        yield from records
    rest = braces.finish()
    if rest is not None:
        yield BadRecord(braces.start_line, at_end, raw=rest), rest


def too_many(limits: BodyLimits) -> LimitError:
    return LimitError(f"the body holds more than {limits.records} records", hint="send it in parts")


def empty_body() -> InputError:
    return InputError("the body is empty", hint="send one record or more")


def unreadable(error: BadRecord) -> InputError:
    return InputError(f"the body cannot be read: {error.reason}", line=error.place, column=error.column)
