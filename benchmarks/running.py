"""Starts a real cluster in processes of its own, for benchmarks over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

_STOP_S = 30.0


@dataclass(frozen=True, slots=True)
class RunningCluster:
    address: str
    process: psutil.Process

    def run(self, script: str, token: str = "") -> Any:
        headers = {"Content-Type": "text/plain", **({"Authorization": f"Bearer {token}"} if token else {})}
        request = urllib.request.Request(f"{self.address}/v1/statements", script.encode(), headers, method="POST")
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def cpu_s(self) -> float:
        """Of the cluster's process and of Spark's."""
        return sum(times.user + times.system for times in (process.cpu_times() for process in self.processes()))

    def memory_bytes(self) -> int:
        return sum(process.memory_info().rss for process in self.processes())

    def processes(self) -> list[psutil.Process]:
        """The cluster's and Spark's."""
        return [self.process, *self.process.children(recursive=True)]


@contextmanager
def cluster(data: Path, env: Mapping[str, str] | None = None) -> Iterator[RunningCluster]:
    command = [sys.executable, "-m", "tocsin.cli.main", "up", "--data", str(data), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}) as started:
        try:
            assert started.stdout is not None
            ready = started.stdout.readline()
            address = ready.split(" ready at ")[1].split()[0]
            yield RunningCluster(address, psutil.Process(started.pid))
        finally:
            _stop(started)


def _stop(started: subprocess.Popen[str]) -> None:
    """With Spark, also where that does not end by itself."""
    below = psutil.Process(started.pid).children(recursive=True) if started.poll() is None else []
    started.terminate()
    try:
        started.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        for process in below:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        started.kill()


def idle_share(running: RunningCluster, seconds: float) -> float:
    """The part of one core that a cluster uses while nobody asks anything of it."""
    begun_s, cpu_s = time.monotonic(), running.cpu_s()
    time.sleep(seconds)
    return (running.cpu_s() - cpu_s) / (time.monotonic() - begun_s)
