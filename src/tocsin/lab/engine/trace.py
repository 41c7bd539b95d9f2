"""Writes the trace of a run: one line of JSON per event.

The same run writes the same bytes, so that two runs can be compared line by line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol, TextIO

_FORMAT = 1


class RunTrace(Protocol):
    """Records the events of a run."""

    def note(self, at_s: float, what: str, fields: Mapping[str, Any]) -> None: ...


class TraceFile:
    """Writes to a text file. The same run writes the same bytes."""

    def __init__(self, out: TextIO, *, seed: int, about: Mapping[str, Any] | None = None) -> None:
        self._out = out
        self._line({"trace": _FORMAT, "seed": seed, **(about or {})})

    def note(self, at_s: float, what: str, fields: Mapping[str, Any]) -> None:
        self._line({"at_s": at_s, "what": what, **fields})

    def _line(self, value: Mapping[str, Any]) -> None:
        self._out.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")
