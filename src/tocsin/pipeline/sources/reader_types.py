"""The types that every reader yields, and the errors for unreadable records and files.

All formats share them, so that landing and LOAD treat a broken record of any format in the same way.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

# The place of the record (its line, or its number in formats without lines), the record, and its approximate size.
ReadRecord: TypeAlias = tuple[int, dict[str, Any], int]

# The largest single record: a longer one means a file of another format, or a damaged file.
RECORD_LIMIT_BYTES: Final = 16 << 20


class BadRecord(Exception):
    """The record at `place` cannot be read. `field` may be ""; `raw` is as much of its text as is available."""

    def __init__(self, place: int, reason: str, field: str = "", *, column: int = 1, raw: bytes = b"") -> None:
        super().__init__(place, reason, field)
        self.place = place
        self.reason = reason
        self.field = field
        self.column = column
        self.raw = raw


class BadFile(Exception):
    """The whole file cannot be read; the text says why."""


def too_long(place: int, limit_bytes: int = RECORD_LIMIT_BYTES) -> BadRecord:
    limit = f"{limit_bytes >> 20} MiB" if limit_bytes >= 1 << 20 else f"{limit_bytes} bytes"
    return BadRecord(place, f"a record is longer than {limit}")


def not_utf8(place: int) -> BadRecord:
    return BadRecord(place, "is not UTF-8 text")
