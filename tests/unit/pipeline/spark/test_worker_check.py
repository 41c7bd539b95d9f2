from __future__ import annotations

import pytest

from tocsin.pipeline.spark import worker_check
from tocsin.pipeline.spark.worker_report import WorkerImports, WorkerReport

CANNOT_RUN = (
    "Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure: Lost task 0.3 in stage "
    '0.0 (TID 6) (127.0.0.2 executor 0): java.io.IOException: Cannot run program "/no/python": error=2, No such file'
)
VERSIONS = (
    "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different "
    "version: 3.9 than that in driver: 3.11, PySpark cannot run with different minor versions."
)


def test_a_worker_reports_its_python_and_what_it_lacks() -> None:
    (report,) = WorkerImports(("json", "no_such_module"), 0.0)(())
    assert report.missing == ("no_such_module (ModuleNotFoundError: No module named 'no_such_module')",)
    assert report.python.count(".") == 2


def test_what_is_missing_is_said_once_for_all_executors_of_a_machine() -> None:
    lacking = [WorkerReport("a", number, "3.11.7", "/python", ("pyarrow (…)",)) for number in (2, 1)]
    complete = WorkerReport("b", 3, "3.11.7", "/python", ())
    assert worker_check._problems([*lacking, complete]) == ["a lacks pyarrow (…) in /python (Python 3.11.7)"]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (CANNOT_RUN, "Spark's workers have no Python /no/python"),
        (VERSIONS, "Spark's workers have Python 3.9, and the cluster runs with Python 3.11"),
        (
            "ImportError: libx.so is missing\n  at x",
            "Spark's workers cannot run Python: ImportError: libx.so is missing",
        ),
        ("nothing known", "Spark's workers cannot run Python: nothing known"),
    ],
)
def test_a_python_that_does_not_even_start_is_explained(message: str, said: str) -> None:
    error = worker_check._unusable(message)
    assert error.message == said
    assert "requirements-worker.lock" in str(error.hint)
