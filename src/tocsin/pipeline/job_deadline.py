"""A deadline for the Spark jobs of a thread: jobs that run longer are cancelled."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from pyspark.sql import SparkSession

from tocsin.wire.errors import DeadlineError

_AGAIN_S: Final = 1.0  # a job that starts after the others were cancelled is cancelled a moment later


@contextmanager
def job_deadline(spark: SparkSession, deadline_s: float) -> Iterator[None]:
    """Wraps work on a thread that has a job group. Raises DeadlineError if the work fails after its deadline."""
    context = spark.sparkContext
    group = context.getLocalProperty("spark.jobGroup.id")
    is_over, is_done = threading.Event(), threading.Event()

    def watch() -> None:
        wait_s = deadline_s
        while group is not None and not is_done.wait(wait_s):
            is_over.set()
            wait_s = _AGAIN_S
            with suppress(Exception):  # the JVM may be gone
                context.cancelJobGroup(group)

    watcher = threading.Thread(target=watch, name="job deadline", daemon=True)
    watcher.start()
    try:
        yield
    except Exception as error:
        if not is_over.is_set():
            raise
        raise DeadlineError(f"the engine did not answer within {deadline_s:g} s") from error
    finally:
        is_done.set()
