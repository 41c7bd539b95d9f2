from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tocsin.cluster.engine.query_results import ResultFolders
from tocsin.storage.local import LocalFolder


def written(folder: str, **parts: list[int]) -> None:
    """Writes what Spark's tasks write: a file for each, and a few files of its own."""
    Path(folder).mkdir(parents=True)
    for name, rows in parts.items():
        pq.write_table(pa.table({"value": rows}), f"{folder}/part-{name}.parquet")
    Path(folder, "_SUCCESS").touch()
    Path(folder, "_temporary").mkdir()


def test_the_files_of_a_result_are_read_in_the_order_of_their_tasks(tmp_path: Path) -> None:
    files = ResultFolders(LocalFolder(tmp_path)).add()
    written(files.spark_path, b=[3], a=list(range(100)), c=[])
    batches = list(files.batches())
    assert [row for batch in batches for row in batch.column(0).to_pylist()] == [*range(100), 3]
    assert max(batch.num_rows for batch in batches) <= 64
    sizes = [path.stat().st_size for path in Path(files.spark_path).iterdir() if path.is_file()]
    assert files.size_bytes() == sum(sizes)
    files.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_result_that_nobody_wrote_has_no_rows(tmp_path: Path) -> None:
    files = ResultFolders(LocalFolder(tmp_path)).add()
    assert (list(files.batches()), files.size_bytes()) == ([], 0)
    files.remove()


def test_what_came_after_the_removal_is_removed_and_what_is_in_use_is_not(tmp_path: Path) -> None:
    folders = ResultFolders(LocalFolder(tmp_path))
    used, removed = folders.add(), folders.add()
    written(used.spark_path, a=[1])
    removed.remove()
    written(removed.spark_path, a=[2])
    (tmp_path / "another").mkdir()
    folders.remove_abandoned()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["another", Path(used.spark_path).name])
