"""What the engine says when Spark itself is the trouble."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from tocsin.cluster.engine import told
from tocsin.wire.errors import StatementError, UnavailableError


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
