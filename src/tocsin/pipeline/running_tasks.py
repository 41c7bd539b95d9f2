"""Lists the tasks that Spark runs in this machine's JVM, whose they are, and how short of memory the JVM is.

Spark forgets a job when it is cancelled, but a task ends only when it checks for that. Its scheduler still knows the
task, with the properties of its job. One call to a class of ours in the JVM reads all of it (`running_tasks.java`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

ASKER: Final = "tocsin.asker"
"""The local property of Spark that names the caller of a job."""


@dataclass(frozen=True, slots=True)
class RunningTask:
    """A task. `is_over`: its job has ended, usually because it was cancelled. `asker` is empty if nobody asked."""

    is_over: bool
    allocated_bytes: int
    group: str
    asker: str


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The tasks at one moment, the heap, and the time spent in collections since the JVM started."""

    tasks: Sequence[RunningTask]
    heap_bytes: int
    heap_limit_bytes: int
    collection_ms: int


class RunningTasks:
    """Reads the load of a session. Its methods call the JVM, so they must not run on the event loop."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._method: tuple[Any, Any] | None = None

    def read(self) -> EngineLoad | None:
        """Returns the load, or None if the tasks run on other machines, where Spark's own reaper ends them."""
        context: Any = self._spark.sparkContext._jsc.sc()
        if not context.isLocal():
            return None
        if self._method is None:
            self._method = self._compile(context)
        method, arguments = self._method
        return parse_load(method.invoke(None, arguments))

    def _compile(self, context: Any) -> tuple[Any, Any]:
        jvm: Any = self._spark._jvm
        gateway: Any = self._spark.sparkContext._gateway
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
        source = (Path(__file__).parent / "running_tasks.java").read_text(encoding="utf-8")
        compiler.cook(source.replace("@ASKER@", ASKER))
        methods = compiler.getClassLoader().loadClass("tocsin.RunningTasks").getMethods()
        arguments = gateway.new_array(jvm.java.lang.Object, 1)
        arguments[0] = context
        return next(method for method in methods if method.getName() == "describe"), arguments


def parse_load(text: str) -> EngineLoad:
    heap, *lines = text.split("\n")
    tasks = []
    for line in lines:
        is_over, allocated_bytes, group, asker = line.split("\t")
        tasks.append(RunningTask(is_over == "1", int(allocated_bytes), group, asker))
    return EngineLoad(tasks, *map(int, heap.split("\t")))
