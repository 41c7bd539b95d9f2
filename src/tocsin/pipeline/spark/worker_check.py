"""Checks at the start that the Python of every executor can run our code: a start that fails says what is missing.

Without it, the first query with a Python function would fail, perhaps weeks later.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from pyspark.sql import SparkSession

from tocsin.pipeline.spark import shipped_archives
from tocsin.pipeline.spark.worker_report import WorkerImports, WorkerReport
from tocsin.wire.errors import UnavailableError

LOCK: Final = "requirements-worker.lock"
_REMEDY: Final = (
    f"install {LOCK} for the Python that spark.pyspark.python names on every worker, or set "
    "cluster.spark.worker_archive to an archive with them"
)
_GROUP: Final = "tocsin worker check"
_PAUSE_S: Final = 0.2
MODULES: Final = ("pyarrow", *shipped_archives.ROOTS)
_CANNOT_RUN: Final = re.compile(r'Cannot run program "([^"]+)"')
_VERSIONS: Final = re.compile(
    r"Python in worker has different version:? ?(.+?) than that in driver:? ?([\d.]+)", re.DOTALL
)


def check_workers(
    spark: SparkSession, *, timeout_s: float, modules: Sequence[str] = MODULES, most_rounds: int = 10
) -> list[WorkerReport]:
    """Runs a small job on every executor that is there, and returns the reports, one for each executor.

    Raises UnavailableError, with the list of what is missing and the remedy, or if no executor comes in time.
    """
    context: Any = spark.sparkContext
    until_s = time.monotonic() + timeout_s
    reports: dict[tuple[str, int], WorkerReport] = {}
    before = 0
    for _ in range(most_rounds):
        for report in _ask(context, modules, until_s):
            reports[report.executor] = report
        # Executors register one after the other: end when no further one has come meanwhile.
        executors = _executors(context)
        if len(reports) >= executors == before:
            break
        before = executors
    problems = _problems(reports.values())
    if problems:
        raise UnavailableError(f"Spark's workers cannot run Tocsin's functions: {'; '.join(problems)}", hint=_REMEDY)
    return list(reports.values())


def _ask(context: Any, modules: Sequence[str], until_s: float) -> list[WorkerReport]:
    is_late = threading.Event()

    def cancel() -> None:
        is_late.set()
        context.cancelJobGroup(_GROUP)

    timer = threading.Timer(max(0.0, until_s - time.monotonic()), cancel)
    timer.daemon = True
    context.setJobGroup(_GROUP, "checks what the workers have", interruptOnCancel=True)
    timer.start()
    try:
        tasks = max(2, context.defaultParallelism)
        reports: list[WorkerReport] = (
            context.parallelize(range(tasks), tasks).mapPartitions(WorkerImports(modules, _PAUSE_S)).collect()
        )
        return reports
    except Exception as error:
        if is_late.is_set():
            raise UnavailableError(
                "no executor of the Spark cluster took work in time",
                hint="are its workers up, have they free cores and memory (spark.executor.memory, spark.cores.max), "
                "and can they reach this machine (spark.driver.host)?",
            ) from error
        raise _unusable(str(error)) from error
    finally:
        timer.cancel()
        context._jsc.sc().clearJobGroup()


def _unusable(message: str) -> UnavailableError:
    """Translates the error of a worker whose Python does not even reach the check."""
    if (program := _CANNOT_RUN.search(message)) is not None:
        return UnavailableError(f"Spark's workers have no Python {program[1]}", hint=_REMEDY)
    if (versions := _VERSIONS.search(message)) is not None:
        worker, driver = versions[1].strip(), versions[2].strip(".")
        return UnavailableError(
            f"Spark's workers have Python {worker}, and the cluster runs with Python {driver}",
            hint=f"give both the same version; then {_REMEDY}",
        )
    lines = [line for line in message.splitlines() if line.strip()]
    said = next((line.strip() for line in lines if re.match(r"\w+(?:\.\w+)*(?:Error|Exception): ", line)), "")
    return UnavailableError(f"Spark's workers cannot run Python: {said or ' '.join(lines[:2])}"[:500], hint=_REMEDY)


def _problems(reports: Iterable[WorkerReport]) -> list[str]:
    """Says what is missing where, once for all executors of a machine that lack the same."""
    problems = (
        f"{report.host} lacks {', '.join(report.missing)} in {report.executable} (Python {report.python})"
        for report in sorted(reports, key=lambda report: report.executor)
        if report.missing
    )
    return list(dict.fromkeys(problems))


def _executors(context: Any) -> int:
    """The number of executors that are there now; Spark counts the driver among them."""
    return len(context._jsc.sc().statusTracker().getExecutorInfos()) - 1
