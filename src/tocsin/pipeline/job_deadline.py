"""A deadline for what a thread asks Spark: the jobs that it runs beyond it are stopped."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from pyspark.sql import SparkSession

from tocsin.wire.errors import DeadlineError

_AGAIN_S: Final = 1.0  # a job that begins when others have been stopped is stopped a moment later


@contextmanager
def job_deadline(spark: SparkSession, deadline_s: float) -> Iterator[None]:
    """Around work on a thread that has a job group; DeadlineError where that fails since its time was over."""
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

    watching = threading.Thread(target=watch, name="job deadline", daemon=True)
    watching.start()
    try:
        yield
    except Exception as error:
        if not is_over.is_set():
            raise
        raise DeadlineError(f"the engine did not answer within {deadline_s:g} s") from error
    finally:
        is_done.set()
