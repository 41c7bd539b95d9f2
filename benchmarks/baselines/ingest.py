"""News of 500 bytes as JSON lines, and plain Spark that reads such files and appends them to a Delta table."""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORD_BYTES: Final = 500
SCHEMA: Final = "id BIGINT, severity BIGINT, x DOUBLE, y DOUBLE, at STRING, kind STRING, message STRING"
_KINDS: Final = ("fire", "flood", "earthquake", "storm", "crash")


def record(number: int, chance: random.Random) -> bytes:
    """One record as a line of exactly this many bytes."""
    fields = {
        "id": number,
        "severity": chance.randrange(10),
        "x": chance.uniform(-90, 90),
        "y": chance.uniform(-180, 180),
        "at": f"2026-11-15T08:{chance.randrange(60):02}:{chance.randrange(60):02}Z",
        "kind": chance.choice(_KINDS),
        "message": "",
    }
    rest = RECORD_BYTES - 1 - len(orjson.dumps(fields))
    fields["message"] = "".join(chance.choices("abcdefghijklmnopqrstuvwxyz     ", k=rest))
    return orjson.dumps(fields) + b"\n"


def bodies(count: int, records_each: int, seed: int) -> list[bytes]:
    """So many bodies of records with keys of their own, made beforehand: making them is nobody's cost."""
    chance = random.Random(seed)
    return [
        b"".join(record(body * records_each + each, chance) for each in range(records_each)) for body in range(count)
    ]


_DELTA: Final = {
    "spark.jars.packages": "io.delta:delta-spark_4.2_2.13:4.4.0",
    # All the rest of what it asks for is in Spark already.
    "spark.jars.excludes": (
        "org.*:*,com.*:*,io.unitycatalog:*,jakarta*:*,io.netty:*,javax*:*,commons*:*,io.delta:delta-kernel*"
    ),
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # As cheap as small appends can be made: with its defaults, made for large tables, each takes several times longer.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.writeChecksumFile.enabled": "false",
    "spark.databricks.delta.properties.defaults.checkpointInterval": "100",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
}


class PlainSpark:
    """A Spark session, and a Delta table that grows: Spark reads a file of JSON and its own writer appends it.

    The jars come from Maven by Spark's own means. Where it cannot be reached, the rows go to a Parquet folder, which is
    cheaper, so what is compared with it has the harder task.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._round = 0
        try:
            self._spark = self._started(_DELTA)
            self.format = "delta"
        except Exception as problem:
            sys.stderr.write(f"no Delta from Maven ({type(problem).__name__}): comparing with Parquet\n")
            self._spark = self._started({})
            self.format = "parquet"
        self._spark.sparkContext.setLogLevel("ERROR")

    def _started(self, settings: Mapping[str, str]) -> SparkSession:
        from pyspark.sql import SparkSession

        building = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false")
        building = building.config("spark.ui.showConsoleProgress", "false")
        for name, value in {"spark.sql.warehouse.dir": str(self._folder / "warehouse"), **settings}.items():
            building = building.config(name, value)
        started: SparkSession = building.getOrCreate()
        return started

    def files(self, texts: Sequence[bytes], bodies_each: int) -> list[str]:
        """The same records as files of this many bodies each, for Spark to read."""
        landing = self._folder / "landing"
        landing.mkdir(parents=True)
        paths = []
        for at in range(0, len(texts), bodies_each):
            path = landing / f"{at:06}.json"
            path.write_bytes(b"".join(texts[at : at + bodies_each]))
            paths.append(str(path))
        return paths

    def append(self, paths: Sequence[str]) -> None:
        """Each file is one append to a new table."""
        self._round += 1
        out = self._folder / f"out-{self._round}"
        for path in paths:
            self._spark.read.schema(SCHEMA).json(path).write.format(self.format).mode("append").save(str(out))
        shutil.rmtree(out)

    def stop(self) -> None:
        self._spark.stop()
