# ruff: noqa: PT012 - a transaction is a block of statements
"""What every backend of the cluster's store promises (src/tocsin/store/store.py), tried on each.

Another backend is one more class beside `SqliteFile` and one more name in `BACKENDS`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import tocsin
from tocsin.store.sqlite import SqliteStore
from tocsin.store.store import BODY_LIMIT_BYTES, DATAVERSE_LIMIT, NAME_LIMIT, ClusterStore, Transaction, next_epoch
from tocsin.store.upgrades import latest
from tocsin.wire.errors import (
    ConflictError,
    InputError,
    LimitError,
    NotFoundError,
    StorageFullError,
    UnavailableError,
)

NOON = datetime(2026, 11, 15, 12, 0, 0, 123456, UTC)
SOURCE = Path(tocsin.__file__).parents[1]

ODD_NAMES = [
    "Reports", "reports", "REPORTS", "Reports ", " Reports", "", "a.b", "a`b", "a'b", 'a"b', "a;--", "%", "_", "\\",
    "Ä", "A\u0308", "ß", "ss", "日本", "🚨", "\u200f", "line\nbreak", "\t", "x" * NAME_LIMIT, "𝔘" * NAME_LIMIT,
]  # fmt: skip


class SqliteFile:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "cluster" / "store.sqlite"

    def store(self) -> ClusterStore:
        """The same contents each time."""
        return SqliteStore(self.path)

    def small_store(self) -> ClusterStore:
        """A store that has room for some hundred kilobytes."""
        return SqliteStore(self.path, max_bytes=400_000)

    def of_backup(self, path: Path) -> ClusterStore:
        return SqliteStore(path)

    def source(self) -> str:
        """How another process makes the same store."""
        return f"SqliteStore(Path({str(self.path)!r}))"


BACKENDS = {"sqlite": SqliteFile}


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> SqliteFile:
    return BACKENDS[request.param](tmp_path)


@pytest.fixture
async def store(backend: SqliteFile) -> Any:
    store = backend.store()
    await store.open()
    yield store
    await store.close()


async def contents(store: ClusterStore) -> dict[str, Any]:
    return {
        "entries": await store.entries(),
        "tokens": await store.tokens(),
        "facts": await store.facts(),
    }


async def names(store: ClusterStore) -> list[str]:
    return [entry.name for entry in await store.entries()]


async def test_a_new_store_is_empty_but_for_its_epoch_and_birthday(store: ClusterStore) -> None:
    assert await store.entries() == []
    assert await store.tokens() == []
    facts = await store.facts()
    assert isinstance(facts["epoch"], int)
    assert datetime.fromisoformat(facts["created_at"]).tzinfo is not None
    assert store.schema_version == latest()


async def test_what_was_committed_is_there_after_opening_again(backend: SqliteFile, store: ClusterStore) -> None:
    async with store.transaction() as tx:
        await tx.add_entry(
            "dataset", "Default", "Reports", {"keys": [["id"]], "deep": {"a": [1, 2.5, None, True, "ü"]}}
        )
        await tx.set_fact("answer", {"is": 42})
        await tx.add_token("ops", "d" * 64, "admin", NOON)
    assert tx.committed
    before = await contents(store)
    await store.close()
    again = backend.store()
    await again.open()
    assert await contents(again) == before
    assert before["entries"][0].body == {"keys": [["id"]], "deep": {"a": [1, 2.5, None, True, "ü"]}}
    assert before["facts"]["answer"] == {"is": 42}
    assert before["tokens"][0].created_at == NOON
    await again.close()


async def test_an_exception_undoes_the_whole_transaction(store: ClusterStore) -> None:
    async with store.transaction() as tx:
        await tx.add_entry("type", "Default", "Kept", {"v": 1})
    before = await contents(store)
    with pytest.raises(ZeroDivisionError):
        async with store.transaction() as tx:
            await tx.add_entry("type", "Default", "Gone", {})
            await tx.replace_entry("type", "Default", "Kept", {"v": 2})
            await tx.set_fact("gone", 1)
            await tx.add_token("gone", "e" * 64, "admin", NOON)
            raise ZeroDivisionError
    assert not tx.committed
    assert await contents(store) == before


async def test_a_cancellation_undoes_the_whole_transaction_and_frees_the_store(store: ClusterStore) -> None:
    inside = asyncio.Event()

    async def work() -> None:
        async with store.transaction() as tx:
            await tx.add_entry("type", "Default", "Gone", {})
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await store.entries() == []
    async with store.transaction() as tx:
        await tx.add_entry("type", "Default", "Next", {})
    assert await names(store) == ["Next"]


async def test_a_cancellation_at_any_step_leaves_all_or_nothing_and_committed_tells_which(store: ClusterStore) -> None:
    outcomes = set()
    for steps in range(60):
        seen: list[Transaction] = []

        async def work(number: int, seen: list[Transaction]) -> None:
            async with store.transaction() as tx:
                seen.append(tx)
                await tx.add_entry("type", "a", str(number), {})
                await tx.add_entry("type", "b", str(number), {})

        task = asyncio.create_task(work(steps, seen))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        there = [entry.dataverse for entry in await store.entries() if entry.name == str(steps)]
        committed = bool(seen) and seen[0].committed
        assert there == (["a", "b"] if committed else [])
        assert task.cancelled() or committed
        outcomes.add(committed)
    assert False in outcomes


async def test_a_cancellation_during_the_commit_comes_after_it(store: ClusterStore) -> None:
    """The last step of the block cancels its own task, so that the next wait, the commit's, is the one cancelled."""

    seen: list[Transaction] = []

    async def work() -> None:
        async with store.transaction() as tx:
            seen.append(tx)
            await tx.add_entry("type", "Default", "Kept", {})
            task.cancel()

    task = asyncio.create_task(work())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen[0].committed
    assert await names(store) == ["Kept"]


async def test_transactions_run_one_after_the_other(store: ClusterStore) -> None:
    async with store.transaction() as tx:
        await tx.set_fact("count", 0)

    async def increment() -> None:
        async with store.transaction() as tx:
            count = (await tx.facts())["count"]
            await asyncio.sleep(0)
            await tx.set_fact("count", count + 1)

    await asyncio.gather(*(increment() for _ in range(50)))
    assert (await store.facts())["count"] == 50


async def test_readers_see_the_last_committed_state_and_do_not_wait(store: ClusterStore) -> None:
    async with store.transaction() as tx:
        await tx.add_entry("type", "Default", "Old", {})
    async with store.transaction() as tx:
        await tx.add_entry("type", "Default", "New", {})
        assert await names(store) == ["Old"]
        assert [entry.name for entry in await tx.entries()] == ["Old", "New"]
        assert await tx.entry("type", "Default", "New") is not None
        assert await store.entry("type", "Default", "New") is None
    assert await names(store) == ["Old", "New"]


async def test_a_second_transaction_inside_the_first_is_refused_rather_than_waited_for(store: ClusterStore) -> None:
    async with store.transaction() as tx:
        await tx.add_entry("type", "Default", "Kept", {})
        with pytest.raises(RuntimeError, match="already"):
            async with store.transaction():
                pass
    assert await names(store) == ["Kept"]


async def test_a_transaction_that_is_over_takes_nothing_more(store: ClusterStore) -> None:
    async with store.transaction() as tx:
        pass
    with pytest.raises(RuntimeError, match="over"):
        await tx.add_entry("type", "Default", "Late", {})
    assert await store.entries() == []


async def test_entries_come_in_the_order_of_their_creation(store: ClusterStore) -> None:
    made = [f"n{number * 37 % 100}" for number in range(100)]
    for some in (made[:50], made[50:]):
        async with store.transaction() as tx:
            for name in some:
                await tx.add_entry("type", "Default", name, {})
    async with store.transaction() as tx:
        replaced = await tx.replace_entry("type", "Default", made[10], {"new": True})
        await tx.remove_entry("type", "Default", made[99])
        again = await tx.add_entry("type", "Default", made[99], {})
    entries = await store.entries()
    assert [entry.name for entry in entries] == made
    assert entries[10] == replaced
    assert entries[10].body == {"new": True}
    assert entries[99] == again
    assert [entry.id for entry in entries] == sorted({entry.id for entry in entries})
    assert again.id > entries[98].id + 1, "the id of a removed entry came back"


async def test_a_taken_name_is_refused_and_the_transaction_goes_on(store: ClusterStore) -> None:
    async with store.transaction() as tx:
        await tx.add_entry("type", "Default", "T", {"v": 1})
        with pytest.raises(ConflictError, match="type T exists already in Default"):
            await tx.add_entry("type", "Default", "T", {"v": 2})
        await tx.add_entry("type", "Other", "T", {})
        await tx.add_entry("dataset", "Default", "T", {})
    assert [(entry.kind, entry.dataverse) for entry in await store.entries()] == [
        ("type", "Default"),
        ("type", "Other"),
        ("dataset", "Default"),
    ]
    assert (await store.entries())[0].body == {"v": 1}


async def test_what_is_not_there_cannot_be_replaced_and_removing_it_says_so(store: ClusterStore) -> None:
    async with store.transaction() as tx:
        with pytest.raises(NotFoundError):
            await tx.replace_entry("type", "Default", "None", {})
        assert await tx.remove_entry("type", "Default", "None") is False
        await tx.add_entry("type", "Default", "T", {})
        assert await tx.remove_entry("type", "Default", "T") is True
    assert await store.entries() == []


async def test_odd_names_are_kept_apart_character_by_character(backend: SqliteFile, store: ClusterStore) -> None:
    async with store.transaction() as tx:
        for name in ODD_NAMES:
            await tx.add_entry("type", "Default", name, {"name": name})
    await store.close()
    again = backend.store()
    await again.open()
    assert await names(again) == ODD_NAMES
    for name in ODD_NAMES:
        entry = await again.entry("type", "Default", name)
        assert entry is not None
        assert entry.body == {"name": name}
    await again.close()


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x" * (NAME_LIMIT + 1)])
async def test_a_name_that_not_every_backend_can_keep_is_refused(store: ClusterStore, name: str) -> None:
    async with store.transaction() as tx:
        with pytest.raises(InputError):
            await tx.add_entry("type", "Default", name, {})
        with pytest.raises(InputError):
            await tx.add_entry("type", name[: DATAVERSE_LIMIT + 1], "T", {})
        await tx.add_entry("type", "Default", "good", {})
    assert await names(store) == ["good"]


async def test_bodies_keep_every_character_and_every_number(store: ClusterStore) -> None:
    body = {"\0": "\0\ud800 \udfff😀\x7f", "": [2**70, -1, 0.1, 1e300, 5e-324], "nested": {"a": {"b": [[], {}]}}}
    async with store.transaction() as tx:
        added = await tx.add_entry("type", "Default", "T", body)
    assert added.body == body
    assert (await store.entries())[0].body == body


async def test_large_bodies_are_kept_and_too_large_ones_refused(store: ClusterStore) -> None:
    large = {"text": "ü" * 1_000_000}
    async with store.transaction() as tx:
        await tx.add_entry("function", "Default", "large", large)
        with pytest.raises(LimitError, match="too many"):
            await tx.add_entry("function", "Default", "larger", {"text": "x" * BODY_LIMIT_BYTES})
    assert [entry.body for entry in await store.entries()] == [large]


@pytest.mark.parametrize("body", [{"v": float("nan")}, {"v": object()}, {"v": {1, 2}}])
async def test_a_body_that_is_not_json_is_refused(store: ClusterStore, body: dict[str, Any]) -> None:
    async with store.transaction() as tx:
        with pytest.raises(InputError, match="JSON"):
            await tx.add_entry("type", "Default", "T", body)
        with pytest.raises(InputError, match="JSON"):
            await tx.set_fact("f", body)
    assert await store.entries() == []


async def test_facts_are_replaced(store: ClusterStore) -> None:
    for value in (1, None, [1, {"a": "b"}], "text"):
        async with store.transaction() as tx:
            await tx.set_fact("f", value)
        assert (await store.facts())["f"] == value


async def test_a_token_is_revoked_once_and_its_name_is_free_again(store: ClusterStore) -> None:
    async with store.transaction() as tx:
        first = await tx.add_token("ops", "a" * 64, "admin", NOON)
        with pytest.raises(ConflictError, match="ops"):
            await tx.add_token("ops", "b" * 64, "admin", NOON)
        with pytest.raises(ConflictError, match="known"):
            await tx.add_token("other", "a" * 64, "admin", NOON)
        assert await tx.revoke_token(first.id, NOON) is True
        assert await tx.revoke_token(first.id, NOON) is False
        assert await tx.revoke_token(999, NOON) is False
        second = await tx.add_token("ops", "b" * 64, "reader", NOON)
    rows = await store.tokens()
    assert [(row.id, row.revoked_at) for row in rows] == [(first.id, NOON), (second.id, None)]
    assert rows[1] == second


async def test_a_full_disk_is_said_clearly_and_loses_nothing(backend: SqliteFile) -> None:
    store = backend.small_store()
    await store.open()
    async with store.transaction() as tx:
        await tx.add_entry("type", "Default", "Kept", {})
    with pytest.raises(StorageFullError, match="no room"):
        async with store.transaction() as tx:
            await tx.add_entry("type", "Default", "Small", {})
            await tx.add_entry("type", "Default", "Large", {"text": "x" * 1_000_000})
    assert not tx.committed
    assert await names(store) == ["Kept"]
    async with store.transaction() as tx:
        await tx.add_entry("type", "Default", "Fits", {})
    await store.close()
    again = backend.store()
    await again.open()
    assert await names(again) == ["Kept", "Fits"]
    await again.close()


async def test_swallowing_a_failure_inside_the_block_commits_nothing(backend: SqliteFile) -> None:
    store = backend.small_store()
    await store.open()
    with pytest.raises(StorageFullError):
        async with store.transaction() as tx:
            await tx.add_entry("type", "Default", "Before", {})
            with pytest.raises(StorageFullError):
                await tx.add_entry("type", "Default", "Large", {"text": "x" * 1_000_000})
            with pytest.raises(StorageFullError):
                await tx.add_entry("type", "Default", "After", {})
    assert await store.entries() == []
    await store.close()


async def test_a_closed_store_says_so(backend: SqliteFile, store: ClusterStore) -> None:
    await store.close()
    await store.close()
    with pytest.raises(UnavailableError, match="not open"):
        await store.entries()
    with pytest.raises(UnavailableError, match="not open"):
        async with store.transaction():
            pass
    with pytest.raises(UnavailableError, match="not open"):
        _ = store.schema_version
    await store.open()
    assert await store.entries() == []


async def test_closing_waits_for_the_running_transaction(backend: SqliteFile, store: ClusterStore) -> None:
    inside = asyncio.Event()
    go_on = asyncio.Event()

    async def work() -> None:
        async with store.transaction() as tx:
            inside.set()
            await go_on.wait()
            await tx.add_entry("type", "Default", "Kept", {})

    task = asyncio.create_task(work())
    await inside.wait()
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(task, closing)
    await store.open()
    assert await names(store) == ["Kept"]


async def test_a_backup_made_during_a_transaction_holds_the_last_committed_state(
    backend: SqliteFile, store: ClusterStore, tmp_path: Path
) -> None:
    async with store.transaction() as tx:
        for number in range(300):
            await tx.add_entry("type", "Default", f"n{number}", {"text": "x" * 2000})
        await tx.add_token("ops", "a" * 64, "admin", NOON)
    before = await contents(store)
    target = tmp_path / "copy.backup"
    async with store.transaction() as tx:
        await tx.add_entry("type", "Default", "Uncommitted", {})
        await store.backup_to(target)
    assert len(await store.entries()) == 301
    assert target.stat().st_mode & 0o077 == 0
    assert [path.name for path in tmp_path.glob("copy*")] == ["copy.backup"]
    copy = backend.of_backup(target)
    await copy.open()
    assert await contents(copy) == before
    await copy.close()


async def test_a_backup_never_overwrites_a_file(store: ClusterStore, tmp_path: Path) -> None:
    target = tmp_path / "copy.backup"
    target.write_text("mine")
    with pytest.raises(ConflictError, match="exists"):
        await store.backup_to(target)
    assert target.read_text() == "mine"


def test_an_epoch_never_goes_back() -> None:
    assert next_epoch(None, NOON) == int(NOON.timestamp() * 1000)
    assert next_epoch(5, NOON) == next_epoch(None, NOON)
    assert next_epoch(next_epoch(None, NOON), NOON) == next_epoch(None, NOON) + 1


# --- another process, killed ---

CHILD = """
import asyncio, sys
from pathlib import Path
from tocsin.store.sqlite import SqliteStore

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


def child(backend: SqliteFile, inside: str = "pass", crash_at: str = "") -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "TOCSIN_CRASH_AT": crash_at}
    script = CHILD.format(store=backend.source(), inside=inside)
    return subprocess.Popen(
        [sys.executable, "-c", script], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


async def after(backend: SqliteFile) -> tuple[list[str], bool]:
    store = backend.store()
    await store.open()
    found = await names(store), "second" in await store.facts()
    async with store.transaction() as tx:
        await tx.add_entry("type", "Default", "Next", {})
    await store.close()
    return found


ALL = [f"n{number}" for number in range(30)]


async def test_kill_in_the_middle_of_a_transaction_leaves_the_state_before_it(backend: SqliteFile) -> None:
    process = child(backend, inside="print('inside', flush=True); sys.stdin.read()")
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "inside\n"
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert await after(backend) == (["First"], False)


@pytest.mark.parametrize(
    ("point", "expected"),
    [("store.commit.before:2", (["First"], False)), ("store.commit.after:2", (ALL, True))],
)
async def test_kill_around_the_commit_leaves_all_or_nothing(backend: SqliteFile, point: str, expected: Any) -> None:
    with child(backend, crash_at=point) as process:
        said, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert said == "", "it was killed before it could tell anybody"
    assert await after(backend) == expected


async def test_without_a_crash_the_child_commits_everything(backend: SqliteFile) -> None:
    with child(backend) as process:
        said, _ = process.communicate()
    assert (process.returncode, said) == (0, "told\n")
    assert await after(backend) == (ALL, True)
