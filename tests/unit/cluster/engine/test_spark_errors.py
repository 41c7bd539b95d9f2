"""Spark's errors as ours: told by what Java threw, whatever words a record holds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tocsin.cluster.engine.engine_session import WorkerLostError
from tocsin.cluster.engine.spark_errors import translate_spark_error
from tocsin.pipeline.analysis import reason
from tocsin.pipeline.python.protocol import CallError
from tocsin.wire.errors import CapacityError, ConflictError, StatementError, StorageFullError, TocsinError, error_of

PYTHON = "org.apache.spark.api.python.PythonException"
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
        (thrown(SPARK, TASK + "TaskResultLost (result lost from block manager)"), CapacityError),
        (thrown("org.apache.arrow.memory.OutOfMemoryException", "Failure allocating buffer."), CapacityError),
        (thrown(SPARK, TASK + "org.apache.arrow.memory.OutOfMemoryException: Failure allocating buffer."),
         CapacityError),
        (thrown(SPARK, TASK + f"{SPARK}: Python worker exited unexpectedly (crashed)"), WorkerLostError),
        (thrown(SPARK, "?", thrown(SPARK, "Python worker exited unexpectedly (crashed)",
                                   thrown("java.io.EOFException", None))), WorkerLostError),
        (thrown(SPARK, "?", thrown(PYTHON, "Traceback (most recent call last):\nMemoryError")), CapacityError),
        (thrown(SPARK, "[INTERNAL_ERROR_BROADCAST] A block is missing."), CapacityError),
        (thrown(SPARK, "Job aborted due to stage failure: ResultStage 3 has failed the maximum allowable number of "),
         CapacityError),
        (thrown("org.apache.spark.SparkIllegalArgumentException", "Cannot grow BufferHolder by size 9"), CapacityError),
        (thrown("java.util.concurrent.RejectedExecutionException", "Task rejected"), CapacityError),
        (thrown("java.lang.IllegalStateException", "the block manager was stopped"), CapacityError),
    ],
)  # fmt: skip
def test_what_the_engine_lacks_is_told_from_what_a_statement_does_wrong(
    made: Any, origin: Any, kind: type[TocsinError]
) -> None:
    assert type(translate_spark_error(made(origin))) is kind


@pytest.mark.parametrize("made", [FromJava, Vague])
@pytest.mark.parametrize("wrapped", ["bare", "in a task", "in a cause"])
@pytest.mark.parametrize(
    ("java_class", "message"),
    [
        ("java.lang.StackOverflowError", None),
        ("org.apache.spark.SparkArithmeticException", "[DIVIDE_BY_ZERO] Division by zero."),
        ("org.apache.spark.SparkArithmeticException", "[ARITHMETIC_OVERFLOW] long overflow."),
        ("org.apache.spark.SparkNumberFormatException", CAST),
        ("org.apache.spark.SparkDateTimeException", "[CAST_INVALID_INPUT] The value 'x' cannot be cast to DATE"),
        ("org.apache.spark.SparkRuntimeException", "[USER_RAISED_EXCEPTION] no"),
        ("org.apache.spark.SparkArrayIndexOutOfBoundsException", "[INVALID_ARRAY_INDEX] The index 9 is out of bounds."),
        ("org.apache.spark.SparkUnsupportedOperationException", "[UNSUPPORTED_FEATURE] no"),
        ("org.apache.spark.sql.AnalysisException", "[UNRESOLVED_COLUMN] no such column"),
        ("org.apache.spark.sql.catalyst.ExtendedAnalysisException", "[UNRESOLVED_COLUMN] no such column"),
        ("org.apache.spark.sql.catalyst.parser.ParseException", "[PARSE_SYNTAX_ERROR] Syntax error"),
        ("java.util.regex.PatternSyntaxException", "Dangling meta character '*' near index 0"),
        ("java.util.UnknownFormatConversionException", "Conversion = '!'"),
        ("java.time.DateTimeException", "Invalid value for MonthOfYear"),
        ("java.lang.ArithmeticException", "/ by zero"),
        ("java.lang.IllegalArgumentException", "tocsin regex: the pattern is wrong\nwrite another"),
        ("com.fasterxml.jackson.core.exc.StreamConstraintsException", "Document nesting depth (1001) exceeds"),
        ("org.codehaus.commons.compiler.InternalCompilerException", "Code grows beyond 64 KB"),
        (SPARK, "[SCALAR_SUBQUERY_TOO_MANY_ROWS] More than one row returned"),
        (SPARK, "[INTERNAL_ERROR] The Spark SQL phase planning failed with an internal error."),
        (SPARK, "[FAILED_EXECUTE_UDF] User defined function failed"),
        (PYTHON, "Traceback (most recent call last):\nValueError: no"),
    ],
)
def test_an_error_of_evaluating_a_row_or_a_plan_is_the_statements(
    made: Any, wrapped: str, java_class: str, message: str | None
) -> None:
    origin = thrown(java_class, message)
    if wrapped == "in a task":
        origin = thrown(SPARK, TASK + java_class + ("" if message is None else f": {message}"))
    elif wrapped == "in a cause":
        origin = thrown(SPARK, "Exception thrown in awaitResult: ", origin)
    assert type(translate_spark_error(made(origin))) is StatementError


def test_a_call_into_a_jvm_whose_threads_die_is_a_lack_of_capacity() -> None:
    error = translate_spark_error(Py4JError("An error occurred while calling o151.getConfs"))
    assert type(error) is CapacityError
    assert error.code == "capacity"


def test_an_error_that_pyspark_raises_by_itself_is_the_statements() -> None:
    assert type(translate_spark_error(PySparkException("a column is missing"))) is StatementError


def test_a_lost_worker_has_the_code_of_a_lack_of_capacity() -> None:
    error = translate_spark_error(Vague(thrown(SPARK, "Python worker exited unexpectedly (crashed)")))
    assert error.to_json()["code"] == "capacity"
    assert type(error_of(error.to_json())) is CapacityError


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
