"""Runs in Spark's Python workers: reports which Python they are, and which packages they lack.

It imports nothing but the standard library, so that it can report what else is missing.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class WorkerReport:
    """What one executor's Python has. `process` is its parent, of which each executor has one."""

    host: str
    process: int
    python: str
    executable: str
    missing: tuple[str, ...]

    @property
    def executor(self) -> tuple[str, int]:
        return self.host, self.process


@dataclass(frozen=True)
class WorkerImports:
    """Imports the modules in a worker. It then waits a moment, so that other executors get a task, too."""

    modules: Sequence[str]
    pause_s: float

    def __call__(self, _rows: Iterable[object]) -> Iterator[WorkerReport]:
        missing = []
        for module in self.modules:
            try:
                importlib.import_module(module)
            except Exception as error:
                missing.append(f"{module} ({type(error).__name__}: {error})")
        time.sleep(self.pause_s)
        version = ".".join(map(str, sys.version_info[:3]))
        yield WorkerReport(socket.gethostname(), os.getppid(), version, sys.executable, tuple(missing))
