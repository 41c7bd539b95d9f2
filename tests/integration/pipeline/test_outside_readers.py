"""Other engines find a dataset's table by its location, and what is kept for them can be seen."""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable

from tests.support.sparkless_process import opened
from tocsin.cluster.catalog.metadata import DATASETS
from tocsin.pipeline.datasets.upkeep import upkeep


async def test_a_dataset_is_read_at_its_location_also_as_it_was(tmp_path: Path) -> None:
    async with opened(
        tmp_path / "data", **{"cluster.datasets.history": 1, "cluster.datasets.outside_readers_s": 3600}
    ) as parts:
        await parts.run(
            "CREATE DATAVERSE v; USE v; CREATE TYPE T AS {id: int, said: string}; CREATE DATASET D(T) PRIMARY KEY id;"
            'INSERT INTO D ({"id": 1, "said": "a"});'
        )
        described = DATASETS["Dataset"]
        assert callable(described.rows)
        (row,) = described.rows(parts.catalog.catalog, parts.tables.folder)
        outside = DeltaTable(row["Location"])
        assert outside.metadata().configuration["delta.logRetentionDuration"] == "interval 3600 seconds"
        for said in "bcde":
            await parts.run(f'USE v; UPSERT INTO D ({{"id": 1, "said": "{said}"}});')
        table = parts.table("D")
        table.cleaned_at_version = -100
        upkeep(table)
        assert parts.tables.kept_for_readers()[0] == 4
        assert parts.tables.kept_for_readers()[1] > 0
        assert parts.tables.kept_for_readers()[2] > 0
        assert outside.to_pyarrow_table().column("said").to_pylist() == ["a"]
        assert DeltaTable(row["Location"]).to_pyarrow_table().column("said").to_pylist() == ["e"]
