"""Makes an archive of Spark's classes, from which a JVM starts with half the CPU.

    python -m tocsin.pipeline.class_archive

Most of a start is loading and verifying about ten thousand classes. Java can map them from a file instead (class data
sharing). The file belongs to the Python environment, because it fits exactly the jars there: Java ignores an archive of
another Java or of other jars. Without one Spark starts as well, only slower.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tocsin.durable_files import sync_file

ARCHIVE: Final = Path(sys.prefix) / "var" / "tocsin" / "spark-classes.jsa"
_EXIT_TIMEOUT_S: Final = 600.0
# Statements whose execution loads the classes that most statements need: joins, aggregates, sorts, windows, variants.
_WARM_UP: Final = (
    "SELECT k, count(*), max(v) FROM rows GROUP BY k ORDER BY k",
    "SELECT a.k, b.v, row_number() OVER (PARTITION BY a.k ORDER BY b.v) FROM rows a JOIN files b ON a.k = b.k",
    "SELECT k FROM files WHERE v LIKE 'a%' AND k IN (SELECT k FROM rows) UNION ALL SELECT k FROM rows",
    "SELECT try_variant_get(parse_json('{\"a\": 1}'), '$.a', 'bigint'), collect_list(struct(k, v)) FROM files",
    "SELECT explode(sequence(1, 3)), to_json(named_struct('k', k)), current_timestamp() FROM rows",
)


def class_archive_options(archive: Path = ARCHIVE) -> list[str]:
    """The options with which Java uses the archive, if there is one. A line about an unfit one goes to Spark's log."""
    return [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []


def make_archive(archive: Path = ARCHIVE) -> None:
    """Starts Spark once, executes a few statements, and keeps the classes that they needed.

    Raises FileNotFoundError if this Java cannot make an archive.
    """
    from tocsin.pipeline import session

    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix="making-") as folder:
        draft = Path(folder) / archive.name
        # Compiling well would only delay the end of a JVM that lives for seconds.
        options = f'-XX:TieredStopAtLevel=1 "-XX:ArchiveClassesAtExit={draft}"'
        spark = session.start(Path(folder) / "scratch", conf={"spark.driver.extraJavaOptions": options})
        try:
            _warm_up(spark, Path(folder) / "files")
            process, jvm = session.jvm_process(spark), spark._jvm
            with suppress(Exception):  # the connection ends with the JVM
                jvm.System.exit(0)
            # Java writes the archive when all its other threads have ended.
            if process.wait(_EXIT_TIMEOUT_S) != 0:
                raise FileNotFoundError(f"Java ended with the status {process.returncode}")
        finally:
            session.kill(spark)
        sync_file(draft)  # a cut archive would crash every JVM that maps it
        draft.replace(archive)


def _warm_up(spark: Any, files: Path) -> None:
    import pyarrow as pa

    spark.createDataFrame(pa.table({"k": [1, 2, 2], "v": ["a", "b", None]})).createOrReplaceTempView("rows")
    spark.table("rows").write.parquet(str(files))
    spark.read.schema("k BIGINT, v STRING").parquet(str(files)).createOrReplaceTempView("files")
    for statement in _WARM_UP:
        spark.sql(statement).toArrow()


if __name__ == "__main__":
    try:
        make_archive()
    except FileNotFoundError as error:
        sys.exit(f"this Java cannot archive classes, so Spark starts more slowly: {error}")
