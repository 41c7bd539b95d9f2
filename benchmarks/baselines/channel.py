"""What Spark alone takes for the data of the channel benchmark: no Tocsin in it."""

from __future__ import annotations

import random
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
MATCHES: Final = 10  # interests that want a record, on average


def kinds(interests: int) -> int:
    """How many different parameter values there are."""
    return max(1, interests // MATCHES)


def records(count: int, interests: int, seed: int = 1) -> list[dict[str, Any]]:
    """New publications of about 300 bytes."""
    rng = random.Random(seed)
    choice = kinds(interests)
    return [
        {"number": i, "kind": f"k{rng.randrange(choice)}", "severity": rng.randrange(10), "message": "m" * 250}
        for i in range(count)
    ]


def keyword_texts(count: int, keywords: int, seed: int = 1) -> tuple[list[str], list[dict[str, Any]]]:
    """Keywords of 4 to 10 letters, and publications of about 250 letters that each have ten of them."""
    rng = random.Random(seed)
    wanted = list(dict.fromkeys("".join(rng.choices(_LETTERS, k=rng.randint(4, 10))) for _ in range(3 * keywords)))
    wanted = wanted[:keywords]
    choice = kinds(keywords)

    def text() -> str:
        words = [rng.choice(wanted) for _ in range(MATCHES)]
        words += ["".join(rng.choices(_LETTERS, k=rng.randint(2, 9))) for _ in range(28)]
        rng.shuffle(words)
        return " ".join(words)

    return wanted, [
        {"number": i, "kind": f"k{rng.randrange(choice)}", "severity": rng.randrange(10), "message": text()}
        for i in range(count)
    ]


class BareJoin:
    """A table of interests cached in Spark, and one join with the new records."""

    def __init__(self, spark: SparkSession, interests: int) -> None:
        self._spark = spark
        choice = kinds(interests)
        table = pa.table({
            "id": pa.array(np.arange(interests)),
            "kind": pa.array([f"k{i % choice}" for i in range(interests)]),
        })  # fmt: skip
        self._frame = spark.createDataFrame(table).cache()
        self._frame.count()
        self._frame.createOrReplaceTempView("bare_interests")

    def run(self, rows: pa.Table) -> pa.Table:
        self._spark.createDataFrame(rows).createOrReplaceTempView("bare_records")
        return self._spark.sql(
            "SELECT /*+ BROADCAST(r) */ i.id, r.number, r.kind, r.severity, r.message "
            "FROM bare_records r JOIN bare_interests i ON r.kind = i.kind"
        ).toArrow()

    def one_by_one(self, rows: pa.Table, parameters: list[str]) -> int:
        """A query for each subscription, as without sharing."""
        self._spark.createDataFrame(rows).createOrReplaceTempView("bare_records")
        found = 0
        for parameter in parameters:
            query = "SELECT r.number, r.kind, r.severity, r.message FROM bare_records r WHERE r.kind = :kind"
            found += self._spark.sql(query, {"kind": parameter}).toArrow().num_rows
        return found

    def close(self) -> None:
        self._frame.unpersist()
