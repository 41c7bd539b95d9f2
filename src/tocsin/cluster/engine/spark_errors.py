"""Translates Spark's errors to ours.

Spark's messages quote data, and a record may contain any words. So an error is recognised by the classes of the Java
exceptions and by the beginnings of Spark's own messages, never by words somewhere in a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException, PythonException

from tocsin.cluster.engine.engine_session import engine_lost
from tocsin.pipeline.analysis import reason
from tocsin.pipeline.java_functions import function_problem
from tocsin.pipeline.python.protocol import CallError, parse_call_error
from tocsin.wire.errors import CapacityError, ConflictError, StatementError, StorageFullError, TocsinError

_DEEPEST: Final = 20
# errors of Spark itself; those of statements and records have other classes
_SPARK: Final = "org.apache.spark.SparkException"
# The exception of a task, where Java's chain of causes does not include it.
_FAILED_TASK: Final = re.compile(
    r"(?:\[\w+\] )?Job aborted due to stage failure: Task \d+ in stage [\d.]+ failed \d+ times, most recent failure: "
    r"(?:Lost task [\d.]+ in stage [\d.]+ \(TID \d+\) \([^()\n]*\): )?(?P<kind>[\w.$]+)(?:: (?P<message>.*))?",
    re.DOTALL,
)
_TOO_LARGE: Final = re.compile(
    r"(?:\[\w+\] )?(?:Job aborted due to stage failure: )?Total size of serialized results of \d+ tasks \([^()\n]*\) "
    r"is bigger than "
)
_NO_MEMORY_KINDS: Final = ("java.lang.OutOfMemoryError", "org.apache.spark.memory.SparkOutOfMemoryError")
_NO_MEMORY: Final = re.compile(
    r"(?:\[\w+\] )?(?:Cannot broadcast the table that is larger|Not enough memory to build and broadcast)"
)
_WRONG_ARGUMENT: Final = "java.lang.IllegalArgumentException"
_ROW_KINDS: Final = (_WRONG_ARGUMENT, "org.apache.spark.SparkIllegalArgumentException")
_LARGE_ROW: Final = re.compile(r"(?:\[\w+\] )?Cannot grow BufferHolder")
_LOST_KINDS: Final = ("ExecutorLostFailure", "FetchFailed", "org.apache.spark.shuffle.FetchFailedException")
_LATE_BROADCAST: Final = re.compile(r"(?:\[\w+\] )?Could not execute broadcast in \d+ secs")
_DISK_KINDS: Final = ("java.io.IOException", "java.nio.file.FileSystemException", "org.apache.hadoop.fs.FSError")
_FULL: Final = re.compile(r"No space left on device|Disk quota exceeded|File too large")
_PYTHON: Final = "org.apache.spark.api.python.PythonException"


@dataclass(frozen=True, slots=True)
class _SparkFailure:
    """One Java exception."""

    kind: str
    message: str


def translate_spark_error(error: Exception) -> TocsinError:
    """Translates an error of Spark. An error that a statement can cause becomes a StatementError."""
    if isinstance(error, Py4JNetworkError):
        return engine_lost()
    try:
        text, causes = str(error), list(_causes(error))
    except Exception:  # these calls go to the JVM, which may be gone
        return engine_lost()
    if any(cause.kind in _DISK_KINDS and _FULL.search(cause.message) for cause in causes):
        return StorageFullError("there is no room left for the query's intermediate data")
    if any(cause.kind == "java.lang.StackOverflowError" for cause in causes):
        return StatementError("the statement is nested too deeply for the engine", hint="break it up with LET or WITH")
    for cause in causes:
        if cause.kind == _PYTHON and (failed := parse_call_error(cause.message)) is not None:
            return translate_call_error(failed)
    for cause in causes:
        if cause.kind == _WRONG_ARGUMENT and (problem := function_problem(cause.message)) is not None:
            return StatementError(problem[0], hint=problem[1])
    if (capacity_error := _capacity(causes)) is not None:
        return capacity_error
    if any(cause.message.startswith("Python worker exited unexpectedly") for cause in causes):
        return StatementError(
            "a function in Python has ended its process", hint="it crashed, or took all of the memory"
        )
    if isinstance(error, PythonException):
        return StatementError(f"a worker in Python failed: {text.strip().splitlines()[-1]}"[:500])
    if isinstance(error, PySparkException):
        return StatementError(reason(text))
    # The outer Java exceptions say nothing, so take the innermost message.
    messages = [cause.message for cause in causes if cause.message]
    return StatementError(reason(messages[-1] if messages else text or type(error).__name__)[:500])


def translate_call_error(failed: CallError) -> TocsinError:
    """Translates an error of a Python function: a failing call, or a function that cannot be called."""
    return (StatementError if failed.usable else ConflictError)(failed.message, hint=failed.hint)


def _capacity(causes: list[_SparkFailure]) -> CapacityError | None:
    """Returns the error for a lack of memory or time in Spark. The same work in smaller parts may succeed."""
    for cause in causes:
        is_spark_error = cause.kind == _SPARK
        if is_spark_error and _TOO_LARGE.match(cause.message):
            return CapacityError("the answer is larger than the engine takes", hint="raise cluster.spark.driver_memory")
        is_large_row = cause.kind in _ROW_KINDS and _LARGE_ROW.match(cause.message)
        if cause.kind in _NO_MEMORY_KINDS or is_large_row or (is_spark_error and _NO_MEMORY.match(cause.message)):
            return CapacityError(
                "the statement needs more memory than the engine has", hint="raise cluster.spark.driver_memory"
            )
        if cause.kind in _LOST_KINDS or (is_spark_error and _LATE_BROADCAST.match(cause.message)):
            return CapacityError("the engine lost what had been computed", hint="ask again")
    return None


def _causes(error: Any) -> Iterator[_SparkFailure]:
    """Yields the Java exceptions, the outermost first."""
    thrown = getattr(error, "java_exception", None)
    if thrown is None:
        thrown = getattr(error, "_origin", None)
    for _ in range(_DEEPEST):
        if thrown is None:
            return
        message = thrown.getMessage() or ""
        kind = thrown.getClass().getName()
        yield _SparkFailure(kind, message)
        if kind == _SPARK and (task := _FAILED_TASK.match(message)) is not None:
            yield _SparkFailure(task["kind"], task["message"] or "")
        thrown = thrown.getCause()
