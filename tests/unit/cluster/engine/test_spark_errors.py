"""Spark's errors as ours: told by what Java threw, whatever words a record holds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tocsin.cluster.engine.spark_errors import translate_spark_error
from tocsin.pipeline.analysis import reason
from tocsin.pipeline.python.protocol import CallError
from tocsin.wire.errors import CapacityError, ConflictError, StatementError, StorageFullError, TocsinError

SPARK = "org.apache.spark.SparkException"
TASK = (
    "Job aborted due to stage failure: Task 0 in stage 4.0 failed 1 times, most recent failure: "
    "Lost task 0.0 in stage 4.0 (TID 4) (127.0.0.1 executor driver): "
)
CAST = '[CAST_INVALID_INPUT] The value \'{}\' of the type "STRING" cannot be cast to "BIGINT"'


def thrown(kind: str, message: str | None, cause: Any = None) -> Any:
    return SimpleNamespace(
        getClass=lambda: SimpleNamespace(getName=lambda: kind), getMessage=lambda: message, getCause=lambda: cause
    )


class FromJava(PySparkException):
    """As PySpark makes them of what Java threw."""

    def __init__(self, origin: Any) -> None:
        super().__init__(origin.getMessage() or "?")
        self._origin = origin


class Vague(Py4JError):
    """As py4j makes them."""

    def __init__(self, java_exception: Any) -> None:
        super().__init__("An error occurred while calling o151.getResult")
        self.java_exception = java_exception


@pytest.mark.parametrize("made", [FromJava, Vague])
@pytest.mark.parametrize(
    ("origin", "kind"),
    [
        (thrown(SPARK, "Job aborted due to stage failure: Total size of serialized results of 4 tasks (2.1 MiB) is "
                "bigger than spark.driver.maxResultSize (2.0 MiB)"), CapacityError),
        (thrown(SPARK, "Total size of serialized results of 1 tasks (9 MiB) is bigger than local maxResultSize"),
         CapacityError),
        (thrown(SPARK, "Exception thrown in awaitResult: ", thrown("java.lang.OutOfMemoryError", "Java heap space")),
         CapacityError),
        (thrown(SPARK, TASK + "org.apache.spark.memory.SparkOutOfMemoryError: [UNABLE_TO_ACQUIRE_MEMORY] Unable"),
         CapacityError),
        (thrown(SPARK, TASK + "ExecutorLostFailure (executor 3 exited caused by one of the running tasks)"),
         CapacityError),
        (thrown("org.apache.spark.shuffle.FetchFailedException", "Connection refused"), CapacityError),
        (thrown(SPARK, "[_LEGACY_ERROR_TEMP_2250] Not enough memory to build and broadcast the table"), CapacityError),
        (thrown(SPARK, "Could not execute broadcast in 300 secs."), CapacityError),
        (thrown(SPARK, TASK + "java.io.IOException: No space left on device"), StorageFullError),
        (thrown("org.apache.hadoop.fs.FSError", "java.io.IOException: No space left on device"), StorageFullError),
        (thrown("java.lang.StackOverflowError", None), StatementError),
        (thrown("org.apache.spark.SparkArithmeticException", "[DIVIDE_BY_ZERO] Division by zero."), StatementError),
    ],
)  # fmt: skip
def test_what_the_engine_lacks_is_told_from_what_a_statement_does_wrong(
    made: Any, origin: Any, kind: type[TocsinError]
) -> None:
    assert type(translate_spark_error(made(origin))) is kind


FAILED = f"{CallError.__module__}.{CallError.__qualname__}: {CallError('no module', usable=False)}"


def test_a_function_in_python_that_cannot_be_called_says_so() -> None:
    found = translate_spark_error(
        Vague(thrown(SPARK, "?", thrown("org.apache.spark.api.python.PythonException", f"T:\n{FAILED}")))
    )
    assert (type(found), found.message) == (ConflictError, "no module")


WORDS = st.lists(
    st.sampled_from([
        "SparkContext was shut down", "Cannot call methods on a stopped SparkContext", "OutOfMemoryError",
        "java.lang.OutOfMemoryError: Java heap space", "No space left on device", "StackOverflowError", TASK, FAILED,
        "is bigger than spark.driver.maxResultSize", "ExecutorLostFailure", "FetchFailed", "Caused by: ", "\n", ": ",
        "Total size of serialized results of 4 tasks (2.1 MiB) is bigger than ", "'",
        "Python worker exited unexpectedly",
    ]),
    max_size=6,
).map("".join)  # fmt: skip


SAID = st.sampled_from([
    ("org.apache.spark.SparkNumberFormatException", CAST),
    ("org.apache.spark.SparkRuntimeException", "[USER_RAISED_EXCEPTION] {}"),
])  # fmt: skip


@given(WORDS, SAID, st.booleans())
def test_whatever_words_a_record_holds_the_fault_is_the_statements(
    words: str, said: tuple[str, str], wrapped: bool
) -> None:
    kind, message = said[0], said[1].format(words)
    origin = thrown(kind, message)
    if wrapped:
        origin = thrown(SPARK, f"{TASK}{kind}: {message}", origin)
    for error in (FromJava(origin), Vague(origin)):
        assert type(translate_spark_error(error)) is StatementError


def test_a_message_that_quotes_a_long_value_is_cut_before_it_is_searched() -> None:
    text = reason(f"[CAST_INVALID_INPUT] The value '{'x' * 1_000_000}' cannot be cast. SQLSTATE: 22018")
    assert len(text) < 3_000
    assert text.startswith("The value 'xxx")
