"""Writes files atomically: a file exists whole or not at all.

A run may be killed at any moment and continued later; a file that was cut short would then count as finished.
"""

from __future__ import annotations

import os
from pathlib import Path

from tocsin.durable_files import sync_file


class AtomicFile:
    """A temporary path that becomes the file when everything is written and synced. Neither an interruption nor a power
    cut leaves half a file. Several processes may write the same file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._new = path.with_name(f".{path.name}.{os.getpid()}.new{path.suffix}")

    def __enter__(self) -> Path:
        return self._new

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._new.unlink(missing_ok=True)
            return
        sync_file(self._new)
        self._new.replace(self._path)
