"""Reads the trace of a run of the lab, or keeps it in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tocsin.wire.errors import InputError


@dataclass(frozen=True, slots=True)
class TracedEvent:
    """One recorded event."""

    at_s: float
    what: str
    fields: Mapping[str, Any]


class TraceList:
    """Keeps the events of a short run in memory."""

    def __init__(self) -> None:
        self.notes: list[TracedEvent] = []

    def note(self, at_s: float, what: str, fields: Mapping[str, Any]) -> None:
        self.notes.append(TracedEvent(at_s, what, dict(fields)))


def read_trace(path: Path) -> tuple[dict[str, Any], Iterator[TracedEvent]]:
    """Returns the header of a trace file and its events. `InputError` names a line that is not an event."""
    lines = _lines(path)
    _, header = next(lines, (0, {}))
    if header.pop("trace", None) != 1:
        raise InputError(f"{path}: not a trace of the lab, or one of a newer version")
    return header, (_noted(path, number, value) for number, value in lines)


def _noted(path: Path, number: int, value: dict[str, Any]) -> TracedEvent:
    try:
        return TracedEvent(float(value.pop("at_s")), str(value.pop("what")), value)
    except (KeyError, ValueError) as error:
        raise InputError(f"{path}, line {number}: an event needs at_s and what: {error}") from None


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                value = json.loads(line)
                if not isinstance(value, dict):
                    raise InputError(f"{path}, line {number}: not an object")
                yield number, value
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path}: not lines of JSON: {error}") from None
