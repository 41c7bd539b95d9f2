"""A full disk: a clear error, nothing lost, nothing half-done, and all goes on once there is room.

The disk is filled by a limit on the size of files (RLIMIT_FSIZE), which the kernel holds against Python, Arrow,
delta-rs, SQLite and Java alike, and which needs no rights. From 0 upwards it lets one more write of a statement pass,
so that each of them is once the first to fail.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.dataset_histories import seen
from tests.support.real_processes import cluster, environment
from tests.support.small_tables import EAGER
from tests.support.sparkless_process import Parts, opened
from tocsin import durable_files
from tocsin.cluster.backup.backup_writer import write_backup
from tocsin.pipeline.datasets import upkeep
from tocsin.wire.errors import StorageFullError

LIMITS_BYTES = (0, 64, 256, 512, 768, 1_024, 1_280, 1_536, 2_048, 3_072, 4_096, 8_192, 16_384, 65_536)
CATALOG_LIMITS_BYTES = (0, 4_096, 20_000, 40_000)
NO_LIMIT = resource.RLIM_INFINITY


@contextmanager
def disk_of(limit_bytes: int, pid: int = 0) -> Iterator[None]:
    """While it lasts no file of the process can grow beyond this."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


def files_in(data: Path) -> set[str]:
    return {str(path.relative_to(data)) for path in (data / "datasets").rglob("*")}


class Disk:
    """Takes statements on disks of growing size, in a process of its own, since the limit holds for a whole process."""

    def __init__(self, parts: Parts, folder: Path) -> None:
        self.parts = parts
        self.folder = folder
        self.refused: dict[str, int] = {}

    async def fill(self, name: str, statement: str, limits_bytes: tuple[int, ...] = LIMITS_BYTES) -> None:
        """Refused until the disk is large enough, each time without a trace; at last, done."""
        self.refused[name] = 0
        data = self.parts.settings.data
        before, files = seen(self.parts), files_in(data)
        for limit_bytes in limits_bytes:
            try:
                with disk_of(limit_bytes):
                    await self.take(statement)
            except StorageFullError:
                self.refused[name] += 1
            else:
                assert limit_bytes > 0, f"{name} needs no room at all"
                return
            assert seen(self.parts) == before, (name, limit_bytes)
            # Upkeep has several steps, and those that were done stay done.
            assert name in ("upkeep", "second upkeep") or files_in(data) == files, (name, limit_bytes)
        await self.take(statement)

    async def take(self, statement: str) -> None:
        verb, _, name = statement.partition(" ")
        if verb == "upkeep":
            await asyncio.to_thread(upkeep.upkeep, self.parts.table(name), EAGER)
        elif verb == "backup":
            tables = self.parts.tables.by_folder(self.parts.catalog.catalog.datasets)
            await write_backup(self.parts.store, lambda: tables, self.folder / "saved", data=self.parts.settings.data)
        else:
            await self.parts.run(statement)


async def live(folder: Path) -> dict[str, int]:
    source = folder / "rows.json"
    source.write_text("".join(f'{{"id": {100 + i}, "said": "{"l" * 50}"}}\n' for i in range(2_000)))
    load = f'LOAD DATASET v.D USING localfs (("path"="{source}"),("format"="json"))'
    async with opened(folder / "data") as parts:
        disk = Disk(parts, folder)
        await disk.fill("create dataverse", "CREATE DATAVERSE v", CATALOG_LIMITS_BYTES)
        await disk.fill("create type", "CREATE TYPE v.T AS { id: int, said: string }", CATALOG_LIMITS_BYTES)
        await disk.fill("create dataset", "CREATE DATASET v.D(T) PRIMARY KEY id")
        await disk.fill("insert", 'INSERT INTO v.D [{"id": 1, "said": "a"}, {"id": 2, "said": "a"}]')
        await disk.fill("second insert", 'INSERT INTO v.D {"id": 3, "said": "a"}')
        await disk.fill("upkeep", "upkeep D")
        await disk.fill("upsert", 'UPSERT INTO v.D [{"id": 2, "said": "b"}, {"id": 4, "said": "b"}]')
        await disk.fill("load", load)
        await disk.fill("second upkeep", "upkeep D")
        await disk.fill("create index", "CREATE INDEX i ON v.D(said)", CATALOG_LIMITS_BYTES)
        await disk.fill("backup", "backup")
        await disk.fill("delete", "DELETE FROM v.D")
        await disk.fill("drop dataset", "DROP DATASET v.D", CATALOG_LIMITS_BYTES)
        return disk.refused


def test_whatever_a_full_disk_interrupts_leaves_no_trace_and_works_once_there_is_room(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "tests.integration.cluster.test_full_disk", str(tmp_path)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    refused = json.loads(process.stdout)
    assert all(refused.values()), refused
    # Several disks were too small: not only the first write of each failed.
    several = ("create dataset", "insert", "upsert", "load", "upkeep", "backup")
    assert all(refused[name] > 2 for name in several), refused


def test_a_cluster_answers_507_while_the_disk_is_full_and_goes_on_afterwards(tmp_path: Path) -> None:
    source = tmp_path / "rows.json"
    source.write_text("".join(f'{{"id": {100 + i}, "said": "l"}}\n' for i in range(5_000)))
    statements = [
        'INSERT INTO D {"id": 2, "said": "b"};',
        'UPSERT INTO D {"id": 1, "said": "c"};',
        f'LOAD DATASET D USING localfs (("path"="{source}"),("format"="json"));',
        "DELETE FROM D d WHERE d.id = 1;",
        "CREATE DATASET E(T) PRIMARY KEY id;",
        "CREATE TYPE U AS {id: int};",
        "DROP DATASET D;",
    ]
    with cluster(tmp_path / "data") as process:
        client = process.client
        made = "CREATE TYPE T AS {id: int, said: string}; CREATE DATASET D(T) PRIMARY KEY id;"
        assert client.run(made + 'INSERT INTO D {"id": 1, "said": "a"};').status == 200
        fed = 'CREATE FEED F WITH {"adapter-name": "http_adapter", "type-name": "T"}; CONNECT FEED F TO DATASET G;'
        assert client.run(f"CREATE DATASET G(T) PRIMARY KEY id; {fed} START FEED F;").status == 200

        def publish(first: int, query: str = "") -> int:
            record = b'{"id": %d, "said": "f"}'
            body = b"\n".join(record % (first + number) for number in range(10))
            return client.ask("POST", f"/v1/feeds/F{query}", body, **{"Idempotency-Key": str(first)}).status

        assert publish(0) == 200
        with disk_of(0, process.pid):
            # What was acknowledged has perhaps not landed yet; of what is refused nothing is kept.
            assert [publish(first) for first in (10, 20, 30)] == [507] * 3
            for statement in statements:
                answer = client.run(statement)
                assert (answer.status, answer.error["code"]) == (507, "storage_full"), statement
                assert answer.error["statement"] == 1
            assert client.rows("SELECT VALUE d FROM D d;") == [{"id": 1, "said": "a"}]
        java = process.java()[0].pid
        with disk_of(0, java):
            answer = client.run("SELECT VALUE a.id FROM range(1000) a;", Accept="application/x-ndjson")
            assert (answer.status, answer.error["code"]) == (507, "storage_full")
        assert [client.run(statement).status for statement in statements] == [200] * len(statements)
        assert set(client.rows("SELECT VALUE m.DatasetName FROM Metadata.`Dataset` m;")) == {"E", "G", "FRejected"}
        # The same requests again, as a publisher sends them.
        assert [publish(first, "?wait=visible") for first in (0, 10, 30)] == [200] * 3
        kept = client.rows("SELECT VALUE g.id FROM G g ORDER BY g.id;")
        assert kept == [*range(20), *range(30, 40)]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_no_room_is_known_by_its_number_and_by_its_words(number: int) -> None:
    said = OSError(number, os.strerror(number))
    assert durable_files.is_full_disk(said)
    # What Rust makes of it.
    assert durable_files.is_full_disk(RuntimeError(f"Generic error: {os.strerror(number)} (os error {number})"))
    assert not durable_files.is_full_disk(OSError(errno.EACCES, os.strerror(errno.EACCES)))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(live(Path(sys.argv[1])))))
