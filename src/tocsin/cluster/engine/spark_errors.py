"""Translates Spark's errors to ours.

Only an error that analysing the statement or evaluating a row raises is the statement's fault. Such errors have known
classes. Every other error is a lack of capacity: memory, room, time, or an executor or worker that was lost. A lack of
capacity has too many forms to list them, and blaming a record for it would start a search for poison records.

Spark's messages quote data, and a record may contain any words. So an error is recognised by the classes of the Java
exceptions and by the beginnings of Spark's own messages, never by words somewhere in a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException

from tocsin.cluster.engine.engine_session import WorkerLostError, engine_lost
from tocsin.pipeline.analysis import reason
from tocsin.pipeline.java_functions import function_problem
from tocsin.pipeline.python.protocol import CallError, parse_call_error
from tocsin.wire.errors import CapacityError, ConflictError, StatementError, StorageFullError, TocsinError

ASK_FOR_LESS: Final = "ask for less at once"
_DEEPEST: Final = 20
_LONGEST_REASON: Final = 500
# errors of Spark itself; those of statements and records have other classes
_SPARK: Final = "org.apache.spark.SparkException"
# The exception of a task, where Java's chain of causes does not include it.
_FAILED_TASK: Final = re.compile(
    r"(?:\[\w+\] )?Job aborted due to stage failure: Task \d+ in stage [\d.]+ failed \d+ times, most recent failure: "
    r"(?:Lost task [\d.]+ in stage [\d.]+ \(TID \d+\) \([^()\n]*\): )?(?P<kind>[\w.$]+)(?:: (?P<message>.*))?",
    re.DOTALL,
)

# ------------------------------------------------------------ errors of statements

# The classes of the exceptions that the analyser, the optimizer, the compiler of generated code, and the evaluation of
# a row throw.
_STATEMENT_KINDS: Final = re.compile(
    r"org\.apache\.spark\.Spark(?:Arithmetic|ArrayIndexOutOfBounds|ClassCast|ClassNotFound|DateTime|IllegalArgument"
    r"|NoSuchElement|NoSuchMethod|NumberFormat|Runtime|UnsupportedOperation|Upgrade)Exception"
    r"|org\.apache\.spark\.sql\.AnalysisException"
    r"|org\.apache\.spark\.sql\.catalyst\.ExtendedAnalysisException"
    r"|org\.apache\.spark\.sql\.catalyst\.(?:analysis|errors|json|parser|trees|util)\.\w+Exception"
    r"|org\.apache\.spark\.unsafe\.types\.\w+Exception|org\.apache\.spark\.types\.variant\.\w+Exception"
    r"|java\.lang\.(?:Arithmetic|ArrayIndexOutOfBounds|ArrayStore|ClassCast|IllegalArgument|IndexOutOfBounds|NumberFormat"
    r"|StringIndexOutOfBounds|UnsupportedOperation)Exception"
    r"|java\.(?:time|text|util\.regex|nio\.charset)\.[\w.]+Exception"
    r"|java\.util\.(?:\w*Format\w*|InputMismatch|NoSuchElement)Exception"
    r"|com\.fasterxml\.jackson\.[\w.]+Exception"
    r"|org\.codehaus\.(?:commons|janino)\.[\w.]+Exception"
)
# The conditions of statements for which Spark throws its general exception.
_STATEMENT_CONDITIONS: Final = re.compile(
    r"\[(?:INTERNAL_ERROR|FAILED_EXECUTE_UDF|FAILED_FUNCTION_CALL|SCALAR_SUBQUERY_TOO_MANY_ROWS"
    r"|ROW_SUBQUERY_TOO_MANY_ROWS|MALFORMED_RECORD_IN_PARSING|FAILED_ROW_TO_JSON|NULL_MAP_KEY|DUPLICATED_MAP_KEY"
    r"|USER_RAISED_EXCEPTION|UNSUPPORTED_FEATURE|PLAN_VALIDATION_FAILED_\w+)(?:\.\w+)*\] "
)
_WRONG_ARGUMENT: Final = "java.lang.IllegalArgumentException"
_PYTHON: Final = "org.apache.spark.api.python.PythonException"

# ------------------------------------------------------------ lacks of capacity that deserve a message of their own

_TOO_LARGE: Final = re.compile(
    r"(?:\[\w+\] )?(?:Job aborted due to stage failure: )?Total size of serialized results of \d+ tasks \([^()\n]*\) "
    r"is bigger than "
)
_NO_MEMORY_KINDS: Final = (
    "java.lang.OutOfMemoryError",
    "java.lang.NegativeArraySizeException",
    "org.apache.arrow.memory.OutOfMemoryException",
    "org.apache.arrow.vector.util.OversizedAllocationException",
    "org.apache.spark.memory.SparkOutOfMemoryError",
)
_NO_MEMORY: Final = re.compile(
    r"(?:\[\w+\] )?(?:Cannot broadcast the table |Not enough memory to build and broadcast|Cannot grow BufferHolder"
    r"|Could not allocate memory to grow |Can't acquire \d+ bytes memory |There is not enough memory to build hash map"
    r"|Does not support row that is larger than |Cannot build (?:a )?HashedRelation )"
)
# Messages of exceptions whose classes are those of statements, too.
_NO_MEMORY_MESSAGE_KINDS: Final = (
    _SPARK,
    _WRONG_ARGUMENT,
    "java.lang.UnsupportedOperationException",
    "org.apache.spark.SparkIllegalArgumentException",
    "org.apache.spark.SparkUnsupportedOperationException",
)
_LOST_KINDS: Final = (
    "ExecutorLostFailure", "FetchFailed", "TaskResultLost", "org.apache.spark.shuffle.FetchFailedException",
)  # fmt: skip
_LATE_BROADCAST: Final = re.compile(r"(?:\[\w+\] )?Could not execute broadcast in \d+ secs")
_DISK_KINDS: Final = ("java.io.IOException", "java.nio.file.FileSystemException", "org.apache.hadoop.fs.FSError")
_FULL: Final = re.compile(r"No space left on device|Disk quota exceeded|File too large")
_LOST_WORKER: Final = re.compile(r"(?:\[\w+\] )?Python worker (?:exited unexpectedly|failed to connect back)")
# The last line of a worker's traceback: errors of the worker itself, not of a function, which are CallErrors.
_WORKER_CAPACITY: Final = re.compile(
    r"(?:MemoryError|EOFError|OSError|BrokenPipeError|ConnectionResetError|TimeoutError|pyarrow\.lib\.ArrowMemoryError"
    r"|RuntimeError: can't start new thread)\b"
)


@dataclass(frozen=True, slots=True)
class _SparkFailure:
    """One Java exception."""

    kind: str
    message: str


def translate_work_error(error: Exception) -> Exception:
    """Translates errors of Spark, and of limits that a statement met; returns other errors unchanged."""
    if isinstance(error, PySparkException | Py4JError):
        return translate_spark_error(error)
    if isinstance(error, CallError):
        return translate_call_error(error)
    if isinstance(error, MemoryError):  # pyarrow's, too
        return CapacityError("the answer needs more memory than the cluster has", hint=ASK_FOR_LESS)
    if isinstance(error, RecursionError):
        return StatementError("the statement is nested too deeply", hint="break it up with LET or WITH")
    if isinstance(error, pa.ArrowInvalid) and "recursion depth" in str(error):
        return StatementError("the answer is nested too deeply", hint="at most 60 objects or arrays deep")
    return error


def translate_spark_error(error: Exception) -> TocsinError:
    """Translates an error of Spark: to a StatementError if evaluating the statement raised it, else to a CapacityError,
    a StorageFullError or an EngineLostError."""
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
    if (capacity_error := _known_capacity_error(causes)) is not None:
        return capacity_error
    if any(cause.kind == _PYTHON for cause in causes):
        return _worker_error(next(cause.message for cause in causes if cause.kind == _PYTHON))
    # The outer Java exceptions say nothing, so take the innermost message.
    innermost = next((cause.message for cause in reversed(causes) if cause.message), text or type(error).__name__)
    if isinstance(error, PySparkException) and (not causes or _is_of_statement(causes[0])):
        return StatementError(reason(text))
    if any(map(_is_of_statement, causes)):
        return StatementError(reason(innermost)[:_LONGEST_REASON])
    return CapacityError(
        f"the engine could not finish the work: {reason(innermost)[:_LONGEST_REASON]}",
        hint="ask again, or make the statement smaller",
    )


def _is_of_statement(cause: _SparkFailure) -> bool:
    if cause.kind == _SPARK:
        return _STATEMENT_CONDITIONS.match(cause.message) is not None
    return _STATEMENT_KINDS.fullmatch(cause.kind) is not None


def _worker_error(traceback: str) -> TocsinError:
    """Translates an error of a Python worker outside of any function."""
    lines = traceback.strip().splitlines()
    message = f"a worker in Python failed: {lines[-1] if lines else '?'}"[:_LONGEST_REASON]
    is_capacity = bool(lines) and _WORKER_CAPACITY.match(lines[-1]) is not None
    return CapacityError(message, hint="ask again") if is_capacity else StatementError(message)


def translate_call_error(failed: CallError) -> TocsinError:
    """Translates an error of a Python function: a failing call, or a function that cannot be called."""
    return (StatementError if failed.usable else ConflictError)(failed.message, hint=failed.hint)


def _known_capacity_error(causes: list[_SparkFailure]) -> CapacityError | None:
    """Returns the error for a lack of memory or time in Spark. The same work in smaller parts may succeed."""
    for cause in causes:
        is_spark_error = cause.kind == _SPARK
        if is_spark_error and _TOO_LARGE.match(cause.message):
            return CapacityError("the answer is larger than the engine takes", hint="raise cluster.spark.driver_memory")
        has_no_memory = cause.kind in _NO_MEMORY_MESSAGE_KINDS and _NO_MEMORY.match(cause.message)
        if cause.kind in _NO_MEMORY_KINDS or has_no_memory:
            return CapacityError(
                "the statement needs more memory than the engine has", hint="raise cluster.spark.driver_memory"
            )
        if cause.kind in _LOST_KINDS or (is_spark_error and _LATE_BROADCAST.match(cause.message)):
            return CapacityError("the engine lost what had been computed", hint="ask again")
        if is_spark_error and _LOST_WORKER.match(cause.message):
            return WorkerLostError(
                "a function in Python has ended its process", hint="it crashed, or took all of the memory"
            )
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
