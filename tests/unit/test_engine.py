"""What the engine says when Spark itself is the trouble."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from tocsin.cluster.engine import told
from tocsin.wire.errors import CapacityError, StatementError, StorageFullError, TocsinError, UnavailableError


@pytest.mark.parametrize(
    "said",
    [
        "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.",
        "Job 7 cancelled because SparkContext was shut down",
        'Cannot invoke "x" because the return value of "org.apache.spark.SparkContext.dagScheduler()" is null',
    ],
)
def test_an_engine_that_has_ended_is_no_fault_of_the_statement(said: str) -> None:
    assert isinstance(told(PySparkException(said)), UnavailableError)
    assert isinstance(told(PySparkException("[DIVIDE_BY_ZERO] Division by zero.")), StatementError)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Total size of serialized results of 4 tasks (2.1 MiB) is bigger than spark.driver.maxResultSize (2.0 MiB)",
         CapacityError),
        ("Total size of serialized results of 1 tasks (9 MiB) is bigger than local maxResultSize 2.0 MiB",
         CapacityError),
        ("java.lang.OutOfMemoryError: Java heap space", CapacityError),
        ("org.apache.spark.memory.SparkOutOfMemoryError: [UNABLE_TO_ACQUIRE_MEMORY] Unable to acquire 8 bytes",
         CapacityError),
        ("Job aborted: ExecutorLostFailure (executor 3 exited caused by one of the running tasks)", CapacityError),
        ("org.apache.spark.shuffle.FetchFailedException: Connection refused", CapacityError),
        ("java.io.IOException: No space left on device", StorageFullError),
        ("[DIVIDE_BY_ZERO] Division by zero.", StatementError),
        ("[CAST_INVALID_INPUT] The value 'maxResultSize' of the type STRING cannot be cast", StatementError),
    ],
)  # fmt: skip
def test_what_the_engine_lacks_is_told_from_what_a_statement_does_wrong(said: str, kind: type[TocsinError]) -> None:
    assert type(told(PySparkException(said))) is kind
