"""A process that is killed leaves in the cluster's store what it had committed, whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tocsin
from tests.support.cluster_store_contents import names
from tests.support.store_backends import StoreBackend, opened
from tocsin.store.cluster.interface import ClusterStore

SOURCE = Path(tocsin.__file__).parents[1]
ALL = [f"n{number}" for number in range(30)]

CHILD = """
import asyncio, importlib, sys
from pathlib import Path

async def main():
    store = {store}
    await store.open()
    async with store.transaction() as tx:
        await tx.add_entry("type", "Default", "First", {{}})
    async with store.transaction() as tx:
        for number in range(30):
            # More than the cache holds, so that pages reach the disk before the commit.
            await tx.add_entry("type", "Default", f"n{{number}}", {{"text": "x" * 200_000}})
        await tx.remove_entry("type", "Default", "First")
        await tx.set_fact("second", True)
        {inside}
    print("told", flush=True)

asyncio.run(main())
"""


def child(backend: StoreBackend[ClusterStore], inside: str = "pass", crash_at: str = "") -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "TOCSIN_CRASH_AT": crash_at}
    script = CHILD.format(store=backend.source(), inside=inside)
    return subprocess.Popen(
        [sys.executable, "-c", script], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


async def after(backend: StoreBackend[ClusterStore]) -> tuple[list[str], bool]:
    async with opened(backend.store()) as store:
        found = await names(store), "second" in await store.facts()
        async with store.transaction() as tx:
            await tx.add_entry("type", "Default", "Next", {})
    return found


async def test_kill_in_the_middle_of_a_transaction_leaves_the_state_before_it(
    backend: StoreBackend[ClusterStore],
) -> None:
    process = child(backend, inside="print('inside', flush=True); sys.stdin.read()")
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "inside\n"
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert await after(backend) == (["First"], False)


@pytest.mark.parametrize(
    ("point", "expected"), [("store.commit.before:2", (["First"], False)), ("store.commit.after:2", (ALL, True))]
)
async def test_kill_around_the_commit_leaves_all_or_nothing(
    backend: StoreBackend[ClusterStore], point: str, expected: Any
) -> None:
    with child(backend, crash_at=point) as process:
        said, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert said == "", "it was killed before it could tell anybody"
    assert await after(backend) == expected


async def test_without_a_crash_the_child_commits_everything(backend: StoreBackend[ClusterStore]) -> None:
    with child(backend) as process:
        said, _ = process.communicate()
    assert (process.returncode, said) == (0, "told\n")
    assert await after(backend) == (ALL, True)
