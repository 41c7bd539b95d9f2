"""kill -9 of real cluster processes in the middle of statements, one life after the other on the same data.

A few places, with Spark and over HTTP; `test_crashes` visits all of them, without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.real_processes import ClusterHttpClient, ClusterProcess, cluster, folders

LOADED = 25_000  # more than LOAD takes at once


def insert(first: int, count: int, said: str, verb: str = "INSERT") -> str:
    return f"{verb} INTO v.D {json.dumps([{'id': first + i, 'said': said} for i in range(count)])};"


class Life:
    """A data folder, what must be in it, and one cluster process after the other on it."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.held: dict[int, str] = {}
        self.commit = 0
        self.datasets = {"D"}
        self.types = {"T"}

    def dies(self, crash_at: str, script: str | None, *before: str, **variables: str) -> None:
        """A cluster starts, has everything, and is killed at this place while it works on the script."""
        with ClusterProcess(self.data, crash_at=crash_at, **variables) as process:
            client = process.ready().client
            self.check(client)
            for each in before:
                assert client.run(each).status == 200
            if script is not None:
                client.dies_at(script)
            process.died()

    def check(self, client: ClusterHttpClient) -> None:
        assert set(client.rows("SELECT VALUE m.DatasetName FROM Metadata.`Dataset` m;")) == self.datasets
        types = 'SELECT VALUE m.DatatypeName FROM Metadata.`Datatype` m WHERE m.DataverseName != "Metadata";'
        assert set(client.rows(types)) == self.types
        assert len(folders(self.data)) == len(self.datasets)
        rows: list[Any] = client.rows("SELECT d.id AS id, d.said AS said FROM v.D d;")
        assert len(rows) == len(self.held)
        assert {row["id"]: row["said"] for row in rows} == self.held
        # An upsert of what is there shows the commit number, and is one more commit.
        again = min(self.held)
        done = client.run(insert(again, 1, self.held[again], "UPSERT")).results[0]
        self.commit += 1
        assert done["commit"] == self.commit


def test_killed_clusters_lose_nothing_and_leave_nothing_half_done(tmp_path: Path) -> None:
    data = tmp_path / "data"
    source = tmp_path / "rows.json"
    source.write_text("".join(f'{{"id": {1_000 + i}, "said": "l"}}\n' for i in range(LOADED)))
    load = f'LOAD DATASET v.D USING localfs (("path"="{source}"),("format"="json"));'
    life = Life(data)

    # The fifth change of the catalog is durable, but nobody is told. (A dataset takes two: the intent, and its entry.)
    with ClusterProcess(data, crash_at="store.commit.after:5") as process:
        client = process.ready().client
        made = "CREATE DATAVERSE v; CREATE TYPE v.T AS {id: int, said: string}; CREATE DATASET v.D(T) PRIMARY KEY id;"
        assert client.run(made + insert(1, 3, "a")).status == 200
        client.dies_at("CREATE TYPE v.U AS {id: int};")
        process.died()
    life.held, life.commit, life.types = {1: "a", 2: "a", 3: "a"}, 1, {"T", "U"}

    # Durable, and nobody told: upserted. (Each life begins with one upsert, see `check`.)
    life.dies("dataset.commit.synced:2", insert(2, 2, "u", "UPSERT"))
    life.held |= {2: "u", 3: "u"}
    life.commit += 1

    # Half of a file has passed: nothing loaded.
    life.dies("dataset.load.rows:2", load)

    # Compaction, by itself while the cluster is idle: the same rows, no commit.
    commits = [insert(20 + i, 1, "c") for i in range(16)]
    life.dies("dataset.compact.written", None, *commits, TOCSIN_CLUSTER__DATASETS__UPKEEP_PERIOD_S="0.2")
    life.held |= {20 + i: "c" for i in range(16)}
    life.commit += 16

    with cluster(data) as process:
        life.check(process.client)
        assert process.client.run(load).results[0] == {
            "statement": 1, "kind": "load", "loaded": LOADED, "commit": life.commit + 1,
        }  # fmt: skip
        assert process.client.rows("SELECT VALUE count(*) FROM v.D d;") == [len(life.held) + LOADED]
