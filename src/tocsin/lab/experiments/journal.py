"""Saves each finished cell at once, so that an interrupted run can continue.

An experiment may run for a night or more. A finished cell is therefore synced at once, and only whole lines count, so
that a crash costs no more than the running cells.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

from tocsin.durable_files import sync_open
from tocsin.wire.errors import ConflictError

FILE: Final = "cells.jsonl"


class Journal:
    """A file with one line per finished cell, locked by one process. A line that a crash tore counts as not written."""

    def __init__(self, folder: Path, *, fresh: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / FILE).open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise ConflictError(
                f"{folder}: another run is working there", hint="wait for it, or name another --out"
            ) from None
        self._known: dict[str, dict[str, float]] = {}
        if fresh:
            self._file.truncate(0)
        else:
            self._load()

    def find(self, key: str) -> Mapping[str, float] | None:
        return self._known.get(key)

    def keep(self, key: str, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """Saves the metrics of a cell, durably. Returns them as they will be read back."""
        line = json.dumps({"key": key, "metrics": dict(metrics)}) + "\n"
        self._file.write(line.encode())
        sync_open(self._file)
        _, self._known[key] = _parse_line(line.encode())
        return self._known[key]

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def _load(self) -> None:
        self._file.seek(0)
        whole_bytes = 0
        for line, key, metrics in _whole(self._file):
            self._known[key] = metrics
            whole_bytes += len(line)
        self._file.truncate(whole_bytes)


def look(folder: Path) -> Mapping[str, Mapping[str, float]]:
    """Returns the finished cells by key, read-only, even while another process writes."""
    try:
        with (folder / FILE).open("rb") as file:
            return {key: metrics for _, key, metrics in _whole(file)}
    except FileNotFoundError:
        return {}


def _whole(lines: Iterable[bytes]) -> Iterator[tuple[bytes, str, dict[str, float]]]:
    """Yields the lines up to the first that is torn or still being written."""
    for line in lines:
        try:
            key, metrics = _parse_line(line)
        except (ValueError, KeyError, TypeError, AttributeError):
            return
        yield line, key, metrics


def _parse_line(line: bytes) -> tuple[str, dict[str, float]]:
    if not line.endswith(b"\n"):
        raise ValueError("no whole line")
    fields = json.loads(line)
    return str(fields["key"]), {str(name): float(value) for name, value in fields["metrics"].items()}
