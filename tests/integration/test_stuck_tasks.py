"""Tasks that hear nothing when their job is cancelled are seen, since each keeps a slot until its JVM goes."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.waiting import wait_until
from tocsin.cluster.engine_watch import stuck_tasks

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

# Some seconds of matching, which no interrupt ends.
SLOW = f"SELECT regexp_like(concat(repeat('e', 380), id), '{'.*e' * 4}.*z') FROM range(1)"


def active_tasks(context: SparkContext) -> int:
    tracker = context.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return sum(stage.numActiveTasks for stage in stages if stage is not None)


def test_a_task_that_outlives_its_job_is_stuck_until_it_ends(spark: SparkSession) -> None:
    context = spark.sparkContext
    scala = context._jsc.sc()

    def run() -> None:
        context.setJobGroup("slow", "slow", interruptOnCancel=True)
        with suppress(Exception):  # it is cancelled
            spark.sql(SLOW).toArrow()

    asking = threading.Thread(target=run)
    asking.start()
    wait_until(lambda: active_tasks(context) == 1, "the task runs", 120)
    assert stuck_tasks(scala) == 0, "its job wants it"
    scala.cancelJobGroup("slow", "cancelled")
    wait_until(lambda: stuck_tasks(scala) == 1, "nobody wants it any more")
    asking.join()
    wait_until(lambda: stuck_tasks(scala) == 0, "it has ended", 120)
