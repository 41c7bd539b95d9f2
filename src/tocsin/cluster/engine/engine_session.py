"""One Spark session with everything that lives and dies with it, and the error for work that loses its session.

Views, Python functions and pools exist only inside one JVM. They are replaced together with it, so that no work can use
what belonged to an earlier session.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from subprocess import TimeoutExpired
from typing import Any, Final
from zlib import crc32

from pyspark.sql import SparkSession

from tocsin.pipeline import session
from tocsin.pipeline.analysis import SparkTypeAnalyser
from tocsin.pipeline.python.functions import PythonFunctions
from tocsin.pipeline.running_tasks import RunningTasks
from tocsin.pipeline.views import DatasetViews
from tocsin.wire.errors import CapacityError, UnavailableError

_POOLS: Final = 64
_RETRY_AFTER_S: Final = 5  # what a client is told while there is no session


class EngineLostError(UnavailableError):
    """The session ended before the work was done. Callers whose work may be repeated retry in the next session."""


class WorkerLostError(CapacityError):
    """A Python worker of Spark died during the work: a function crashed it, or the kernel killed it for lack of
    memory."""


def engine_lost() -> EngineLostError:
    return EngineLostError(
        "the engine has stopped and is being replaced", hint="try again soon", retry_after_s=_RETRY_AFTER_S
    )


@dataclass(eq=False, slots=True)
class EngineSession:
    """One Spark session with everything that lives and dies with it."""

    generation: int
    spark: SparkSession
    python: PythonFunctions
    type_analyser: SparkTypeAnalyser
    views: DatasetViews
    tasks: RunningTasks
    is_lost: bool = False
    """Set when the session is abandoned, before its JVM is killed."""
    _pools: set[str] = field(default_factory=set)

    def pool_of(self, asker: str) -> str:
        """Returns the scheduler pool for the jobs of this caller. Pools share Spark fairly. Several callers may share a
        pool, because Spark never removes one."""
        name = f"askers {crc32(asker.encode()) % _POOLS}"
        if name not in self._pools:
            self._pools.add(name)
            session.add_fair_pool(self.spark, name)
        return name

    def has_ended(self, within_s: float = 0.0) -> bool:
        """Whether the JVM process is gone. Asks the operating system, never the JVM."""
        process = session.jvm_process(self.spark)
        if within_s and not self.is_lost:
            with suppress(TimeoutExpired):
                process.wait(within_s)
        return self.is_lost or process.poll() is not None

    def is_stopped(self) -> bool:
        """Whether Spark's context has ended by itself, usually for lack of memory, in a JVM that lives on. Calls the
        JVM, so it must not run on the event loop."""
        try:
            context: Any = self.spark.sparkContext._jsc.sc()
            return bool(context.isStopped())
        except Exception:  # a JVM that does not answer is as good as gone
            return True

    def drop_views(self, names: Sequence[str]) -> None:
        for name in names:
            self.views.drop(name)
