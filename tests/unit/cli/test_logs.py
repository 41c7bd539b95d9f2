"""A log that cannot be written ends nobody's work."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.intake_logs import opened
from tests.support.waiting import WITHIN_S
from tocsin.cli.logs import SafeStream
from tocsin.cluster.catalog.refs import Ref
from tocsin.cluster.feeds import landing_worker
from tocsin.cluster.feeds.landing import LandableBatch
from tocsin.cluster.feeds.landing_worker import LandingWorker
from tocsin.cluster.feeds.metrics import FeedCounts
from tocsin.rules.backoff import BackOff
from tocsin.wire.errors import StoreError

TELLING = """
import logging, sys, structlog
from tocsin.cli.logs import log_to_stderr
log_to_stderr(True)
log = structlog.get_logger()
for _ in range(3):
    log.warning("it must wait", reason="x" * 5_000)
    logging.getLogger("other").warning("it must wait, too")
    try:
        raise OSError("disk")
    except OSError:
        log.exception("it failed")
print("went on")
"""


def told(stderr: int) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", TELLING], stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment, check=False
    )


def test_a_log_goes_on_when_nobody_reads_it() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert told(writing).stdout == "went on\n"
    finally:
        os.close(writing)


def test_a_log_goes_on_when_its_disk_is_full() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        assert told(full).stdout == "went on\n"
    finally:
        os.close(full)


def test_what_can_be_written_is_written(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("w") as stream:
        log = SafeStream(stream)
        log.write("a line\n")
        log.flush()
        assert path.read_text() == "a line\n"
    log.write("nobody has it open any more\n")
    log.flush()


class Broken:
    """A logger that cannot tell anything."""

    def __getattr__(self, _level: str) -> Callable[..., None]:
        def fail(*_: object, **__: object) -> None:
            raise BrokenPipeError

        return fail


class Target:
    """Lands at the third attempt."""

    counted = True
    position = 0
    halted = False
    asks_spark = False
    dataset = Ref("dataset", "v", "D")

    def __init__(self, error: Exception) -> None:
        self.errors = [error, error]

    def land(self, entries: Sequence[LandableBatch]) -> int:
        if self.errors:
            raise self.errors.pop()
        self.position = entries[-1].end
        return self.position


class Engine:
    async def land(self, work: Callable[[], Any], _what: str, *, asks_spark: bool) -> Any:
        return work()


@pytest.mark.parametrize("error", [StoreError("the disk says no"), ValueError("a bug")])
async def test_landing_goes_on_when_it_cannot_tell_that_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(landing_worker, "_log", Broken())
    landed, engine = asyncio.Event(), cast("Any", Engine())

    async def changed() -> None:
        if target.position:
            landed.set()

    async with opened(tmp_path / "log") as log:
        target = Target(error)
        worker = LandingWorker(
            "F", log, target, engine, counts=FeedCounts(), landed=lambda: None, changed=changed,
            back_off=BackOff(0.0),
        )  # fmt: skip
        worker.start()
        await log.append(b"x", 1)
        async with asyncio.timeout(WITHIN_S):
            await landed.wait()
        await worker.end()
