"""The settings of Spark that hold with every master: the language, what queries may reach, and the driver's own JVM."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tocsin.pipeline.class_archive import class_archive_options
from tocsin.wire.errors import UnavailableError

_MIB: Final = 1 << 20


def common_settings(scratch: Path, *, driver_memory: str, ui: bool) -> dict[str, str]:
    return {
        "spark.app.name": "tocsin",
        "spark.submit.deployMode": "client",
        "spark.driver.memory": driver_memory,
        # A result that would fill the JVM is refused with an error first. Spark holds a result four times on its way to
        # us. If there is no memory for that, the threads that carry it die silently: the query waits for ever, and its
        # result keeps its memory.
        "spark.driver.maxResultSize": f"{_mebibytes(driver_memory) // 8}m",
        "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
        "spark.sql.catalogImplementation": "in-memory",
        # The web UI shows every query and has no authentication, so it is off unless a setting wants it.
        "spark.ui.enabled": str(ui).lower(),
        "spark.ui.killEnabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Spark renders the plan of every query as text; rendering a wide plan would cost more than running it.
        "spark.sql.maxPlanStringLength": "100000",
        # The parser caches every shape of query, about 7 KB each, forever unless it is limited.
        "spark.sql.parser.manageParserCaches": "true",
        "spark.sql.parser.parserDfaCacheFlushThreshold": str(_mebibytes(driver_memory) * 8),
        # Statements share the slots rather than queue for them.
        "spark.scheduler.mode": "FAIR",
        # A name in a query is never a path: queries read only the views that we made.
        "spark.sql.runSQLOnFiles": "false",
        # The language: texts and names as written, errors instead of silent NULLs, and one time zone.
        "spark.sql.variable.substitute": "false",
        "spark.sql.caseSensitive": "true",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        # Years before 1900 as delta-rs and pyarrow write and read them.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
        "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
        "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.pyspark.fallback.enabled": "false",
        # Debugging records the call site of each Python line that touches a column: a stack walk per expression.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
    }


def history_settings() -> dict[str, str]:
    """The driver keeps little history of past jobs (it does so even without a UI), and gives unused memory back."""
    return {
        "spark.ui.retainedJobs": "20",
        "spark.ui.retainedStages": "20",
        "spark.ui.retainedTasks": "200",
        "spark.sql.ui.retainedExecutions": "10",
        # A full collection from time to time gives unused memory back.
        "spark.cleaner.periodicGC.interval": "5min",
    }


def driver_java_options(scratch: Path, theirs: str) -> str:
    """Our options for the driver's JVM, followed by those of the caller."""
    options = [
        # A small heap that grows when needed and shrinks again. With less, a busy channel has a full collection of 130
        # ms every second.
        "-Xms64m",
        "-XX:MinHeapFreeRatio=40",
        "-XX:MaxHeapFreeRatio=70",
        # The analyser recurses deeply for deep expressions.
        "-Xss8m",
        # Java would write metrics to a file in the system's temporary folder every 50 ms, even while idle.
        "-XX:-UsePerfData",
        # Libraries unpack native code here.
        f"-Djava.io.tmpdir={scratch / 'tmp'}",
        f"-Dderby.system.home={scratch}",
        f"-Dlog4j2.configurationFile={(scratch / 'log4j2.properties').as_uri()}",
        "-Duser.timezone=UTC",
        "-Dfile.encoding=UTF-8",
        *class_archive_options(),
    ]
    # The leanest collector for a heap of this size, unless the caller names a collector: Java refuses two.
    if re.search(r"-XX:\+Use\w+GC\b", theirs) is None:
        options.append("-XX:+UseSerialGC")
    ours = " ".join(f'"{option}"' for option in options)
    return f"{ours} {theirs}".rstrip()


def _mebibytes(memory: str) -> int:
    """Parses Spark's notation for memory: a number with k, m, g or t; bare numbers are MiB."""
    match = re.fullmatch(r"(\d+)([kmgt]?)b?", memory.strip().lower())
    if match is None:
        raise UnavailableError(f"Spark's memory must be a number with k, m, g or t, such as 1g; got {memory!r}")
    return max(1, int(match[1]) * {"k": 1 << 10, "": _MIB, "m": _MIB, "g": 1 << 30, "t": 1 << 40}[match[2]] // _MIB)
