"""News of 500 bytes as JSON lines, and plain Spark that reads such files and appends them to a Parquet folder."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORD_BYTES: Final = 500
SCHEMA: Final = "id BIGINT, severity BIGINT, x DOUBLE, y DOUBLE, at STRING, kind STRING, message STRING"
_KINDS: Final = ("fire", "flood", "earthquake", "storm", "crash")


def record(number: int, chance: random.Random) -> bytes:
    """One record as a line of exactly so many bytes."""
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


class PlainSpark:
    """A Spark session with its own defaults, and a folder that grows."""

    def __init__(self, folder: Path) -> None:
        from pyspark.sql import SparkSession

        self._folder = folder
        self._spark: SparkSession = (
            SparkSession.builder.master("local[*]")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .getOrCreate()
        )
        self._spark.sparkContext.setLogLevel("ERROR")
        self._round = 0

    def files(self, texts: Sequence[bytes], bodies_each: int) -> list[str]:
        """The same records as files of so many bodies, for Spark to read."""
        landing = self._folder / "landing"
        landing.mkdir(parents=True)
        paths = []
        for at in range(0, len(texts), bodies_each):
            path = landing / f"{at:06}.json"
            path.write_bytes(b"".join(texts[at : at + bodies_each]))
            paths.append(str(path))
        return paths

    def append(self, paths: Sequence[str]) -> None:
        """Each file is one append to a new folder."""
        self._round += 1
        out = self._folder / f"out-{self._round}"
        for path in paths:
            self._spark.read.schema(SCHEMA).json(path).write.mode("append").parquet(str(out))
        shutil.rmtree(out)

    def stop(self) -> None:
        self._spark.stop()
