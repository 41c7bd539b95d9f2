"""Reports arriving files, each once: a Spark streaming query that lists folders and does not read the files.

Spark's checkpoint remembers across crashes which files were found, and batches that were not done are delivered again.
Reading is left to the caller, which lands a file in pieces and sets a broken record aside.
"""

from __future__ import annotations

import glob
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException

from tocsin.pipeline.landing.streaming_checkpoint import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FILES_PER_BATCH: Final = 1_000
_MAGIC: Final = frozenset("{}[]*?\\")

Taken = Callable[[int, Sequence[Path]], None]
"""Takes the files of a batch. If it fails or never returns, the restarted query delivers the same batch again."""


class Arrivals:
    """One streaming query. `watch` runs it in the caller's thread until it ends."""

    def __init__(self, checkpoint: Checkpoint, paths: Sequence[str], period_s: float) -> None:
        self._checkpoint = checkpoint
        self._paths = paths
        self._period_ms = max(1, round(period_s * 1000))
        self._lock = threading.Lock()
        self._query: StreamingQuery | None = None
        self._ended = False
        self._failure: BaseException | None = None

    def watch(self, spark: SparkSession, taken: Taken) -> None:
        """Delivers batches of new files, one after the other. Returns when the query is ended, or raises its error."""
        # The error of a batch reaches the caller; py4j would print it as well.
        logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)
        self._checkpoint.mend()
        self._failure = None

        def batch(_: DataFrame, number: int) -> None:
            try:
                taken(number, self._checkpoint.files(number))
            except BaseException as error:
                self._failure = error
                raise

        with self._lock:
            if self._ended:
                return
            query = self._query = (
                self._found(spark)
                .writeStream.foreachBatch(batch)
                .option("checkpointLocation", str(self._checkpoint.folder))
                .trigger(processingTime=f"{self._period_ms} milliseconds")
                .start()
            )
        try:
            query.awaitTermination()
        except PySparkException as error:
            if self._failure is not None:
                raise self._failure from error
            raise
        finally:
            self._query = None

    def _found(self, spark: SparkSession) -> DataFrame:
        arriving: Any = None
        for path in self._paths:
            source = (
                # Only the names of the files matter: the text format makes no demands on their content.
                spark.readStream.format("text")
                .schema("value string")
                .option("recursiveFileLookup", "true")
                # By default Spark would ignore a file that is a week older than the newest file.
                .option("maxFileAge", "36500d")
                .option("maxFilesPerTrigger", max(1, FILES_PER_BATCH // len(self._paths)))
                .load(_pattern(path))
            )
            arriving = source if arriving is None else arriving.union(source)
        return arriving

    def end(self) -> None:
        """Ends the query, and with it `watch`. Must not be called while a batch is handled."""
        with self._lock:
            self._ended = True
            query = self._query
        if query is not None:
            with suppress(Exception):  # the session may be gone, and the query with it
                query.stop()


def _pattern(path: str) -> str:
    """The pattern for Spark: an existing path is never treated as a pattern."""
    if glob.has_magic(path) and not Path(path).exists():
        return path
    return "".join(f"\\{character}" if character in _MAGIC else character for character in path)
