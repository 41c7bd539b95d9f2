"""Measures a dataset after a day of one record per second, compared with the same rows in a compact dataset.

python -m benchmarks.day [--day]

A day is 86,400 commits of one row, each as a feed's landing makes it, with the cluster's upkeep among them: at least a
quarter of an hour of work. Without --day it is a twentieth. Upkeep has run often by then, but only --day shows
costs that grow with the rows and the tiers of files. A note reports how many there were.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.baselines.datasets import REPORT, reports
from benchmarks.datasets import AN_HOUR, KEYS, live, spark
from benchmarks.harness import Bench, compare, read_options, with_children_cpu_s
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.pipeline.datasets.upkeep import UpkeepLimits
from tocsin.storage.local import LocalFolder

DAY_S: Final = 86_400
PART: Final = 20
_WINDOW: Final = 200  # commits measured together: several rounds of upkeep are among them
_ROUNDS: Final = 5
_SUPPLIED: Final = 10_000


def main() -> None:
    options = read_options(__doc__, day="a whole day, not a twentieth: at least a quarter of an hour")
    bench = Bench("day")
    with tempfile.TemporaryDirectory(prefix="tocsin-bench-") as scratch:
        fed_for_a_day(bench, Path(scratch), part=1 if options.day else PART)
    bench.finish()


def fed_for_a_day(bench: Bench, folder: Path, *, part: int) -> None:
    """Reading it, and the next commit, with a 1/`part` of a day's records behind them."""
    count = DAY_S // part
    said = f"{count:,} records, one a second"
    supply = _rows()
    fed = DatasetTable.create(LocalFolder(folder / "fed"), REPORT, KEYS, outside_readers=AN_HOUR)
    _feed(fed, supply, count)
    compact = _compact(fed, folder / "compact")
    (found,) = compare(
        lambda: _feed(compact, supply, _WINDOW),
        {"fed": lambda: _feed(fed, supply, _WINDOW)},
        rounds=_ROUNDS,
        operations=_WINDOW,
    )
    bench.compared(f"the commit after {said}", found, bar=1.5, baseline="on the same rows, compact")
    # Its worst moment for a query: as many small files as there may be just before a compaction.
    while len(fed.past.state.files) < UpkeepLimits().files_per_compaction - 1:
        fed.insert(next(supply), keys_are_new=True)
    bench.note(f"{said}: {count / DAY_S:.0%} of a day, read from {len(fed.past.state.files)} files")
    _read(bench, folder, fed, f"a query after {said}")


def _rows() -> Iterator[pa.Table]:
    """Reports one by one."""
    seed = 0
    while True:
        seed += 1
        made = reports(_SUPPLIED, seed)
        yield from (made.slice(number, 1) for number in range(_SUPPLIED))


def _feed(table: DatasetTable, supply: Iterator[pa.Table], count: int) -> None:
    """As a feed lands records that come one by one: each a commit with its position, and upkeep when it is due."""
    at = table.position("feed") or 0
    for position in range(at + 1, at + 1 + count):
        table.insert(next(supply), keys_are_new=True, positions={"feed": position})
        live(table)


def _compact(fed: DatasetTable, folder: Path) -> DatasetTable:
    """The same rows, put in at once."""
    with fed.pin(fed.snapshot()) as snapshot:
        rows = pa.concat_tables(pq.ParquetFile(path).read(columns=REPORT.names) for path in snapshot.files)
    made = DatasetTable.create(LocalFolder(folder), REPORT, KEYS)
    made.insert(rows.cast(REPORT), keys_are_new=True, positions={"feed": rows.num_rows})
    return made


def _read(bench: Bench, folder: Path, fed: DatasetTable, what: str) -> None:
    with fed.pin(fed.snapshot()) as snapshot, spark(folder) as started:
        rows = pa.concat_tables(pq.ParquetFile(path).read() for path in snapshot.files)
        at_once = DatasetTable.create(LocalFolder(folder / "at-once"), REPORT, KEYS)
        at_once.insert(rows.select(REPORT.names).cast(REPORT), keys_are_new=True)
        with at_once.pin(at_once.snapshot()) as other:
            schema = started.read.parquet(*other.files).schema

            def query(files: Sequence[str]) -> object:
                found = started.read.schema(schema).parquet(*files).where("severity > 2 AND impactZone.x > 0")
                return found.groupBy("emergencyType").agg({"recordId": "count", "severity": "avg"}).collect()

            (found,) = compare(
                lambda: query(other.files),
                {"fed": lambda: query(snapshot.files)},
                rounds=25,
                clock=with_children_cpu_s,
                warm_up=20,
            )
    bench.compared(what, found, bar=1.5, baseline="on the same rows, compact")


if __name__ == "__main__":
    main()
