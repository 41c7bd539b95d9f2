"""Plain Spark SQL that looks one subscription's results up, as the original system's brokers do: a query for each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class QueryEach:
    """A table of results, one for each subscription, held in memory. What is compared with it has the
    harder task."""

    def __init__(self, folder: Path, results: Sequence[tuple[str, str]]) -> None:
        from pyspark.sql import SparkSession

        building = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false")
        building = building.config("spark.ui.showConsoleProgress", "false")
        building = building.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        # As cheap as small queries can be made.
        building = building.config("spark.sql.shuffle.partitions", "2").config("spark.sql.adaptive.enabled", "false")
        self._spark: SparkSession = building.getOrCreate()
        self._spark.sparkContext.setLogLevel("ERROR")
        rows = self._spark.createDataFrame(list(results), "subscriptionId STRING, result STRING")
        rows.coalesce(1).cache().createOrReplaceTempView("results")
        self._spark.sql("SELECT count(*) FROM results").collect()

    def ask(self, subscription: str) -> str:
        sql = "SELECT result FROM results WHERE subscriptionId = :id"
        (row,) = self._spark.sql(sql, {"id": subscription}).collect()
        return str(row[0])

    def stop(self) -> None:
        self._spark.stop()
