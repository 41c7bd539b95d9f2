"""What Spark's scheduler says of running tasks, and that a task over a range is stopped."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from pyspark.sql import SparkSession

from tests.support.waiting import wait_until
from tocsin.pipeline.running_tasks import ASKER, RunningTasks

# An aggregate that keeps objects reads its rows one by one: then Spark's own range never checks for a killed task.
QUERY = "SELECT size(collect_list(IF(id < 10, id, NULL))) FROM range(0, 300000000000) WHERE tocsin_stoppable(id)"


def test_the_tasks_of_a_job_are_known_with_their_caller_and_end_when_it_is_cancelled(spark: SparkSession) -> None:
    running = RunningTasks(spark)
    context: Any = spark.sparkContext

    def run() -> None:
        context.setJobGroup("endless", "endless", interruptOnCancel=True)
        context.setLocalProperty(ASKER, "ann\tor bob")
        with suppress(Exception):
            spark.sql(QUERY).collect()

    def tasks() -> list[tuple[bool, str]]:
        load = running.read()
        assert load is not None
        assert 0 < load.heap_bytes <= load.heap_limit_bytes
        return [(task.is_over, task.asker) for task in load.tasks if task.group == "endless"]

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: (False, "ann or bob") in tasks(), "it runs")
    context._jsc.sc().cancelJobGroup("endless")
    thread.join()
    wait_until(lambda: not tasks(), "no task is left")
