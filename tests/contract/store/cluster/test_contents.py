"""Entries, facts and tokens come back from the cluster's store as they were given, or are refused."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from tests.support.cluster_store_contents import NOON, names
from tests.support.store_backends import StoreBackend, opened
from tocsin.store.cluster.interface import BODY_LIMIT_BYTES, DATAVERSE_LIMIT, NAME_LIMIT, ClusterStore, Removal
from tocsin.store.cluster.sqlite_store import CLUSTER_UPGRADES
from tocsin.wire.errors import ConflictError, InputError, LimitError, NotFoundError

ODD_NAMES = [
    "Reports", "reports", "REPORTS", "Reports ", " Reports", "", "a.b", "a`b", "a'b", 'a"b', "a;--", "%", "_", "\\",
    "Ä", "A\u0308", "ß", "ss", "日本", "🚨", "\u200f", "line\nbreak", "\t", "x" * NAME_LIMIT, "𝔘" * NAME_LIMIT,
]  # fmt: skip


async def test_a_new_store_is_empty_but_for_its_epoch_and_birthday(store: ClusterStore) -> None:
    assert await store.entries() == []
    assert await store.tokens() == []
    facts = await store.facts()
    assert isinstance(facts["epoch"], int)
    assert datetime.fromisoformat(facts["created_at"]).tzinfo is not None
    assert store.schema_version == CLUSTER_UPGRADES[-1].version


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


async def test_odd_names_are_kept_apart_character_by_character(
    backend: StoreBackend[ClusterStore], store: ClusterStore
) -> None:
    async with store.transaction() as tx:
        for name in ODD_NAMES:
            await tx.add_entry("type", "Default", name, {"name": name})
    await store.close()
    async with opened(backend.store()) as again:
        assert await names(again) == ODD_NAMES
        for name in ODD_NAMES:
            entry = await again.entry("type", "Default", name)
            assert entry is not None
            assert entry.body == {"name": name}


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
        second = await tx.add_token("ops", "b" * 64, "broker", NOON, ("v.F", "v.G"))
    rows = await store.tokens()
    assert [(row.id, row.revoked_at) for row in rows] == [(first.id, NOON), (second.id, None)]
    assert rows[1] == second
    assert rows[1].feeds == ("v.F", "v.G")


async def test_removals_are_kept_until_they_are_forgotten(
    backend: StoreBackend[ClusterStore], store: ClusterStore
) -> None:
    unfinished, dropped = Removal("dataset", "a"), Removal("feed", "a", NOON)
    async with store.transaction() as tx:
        await tx.add_removal(unfinished)
        await tx.add_removal(dropped)
        await tx.add_removal(Removal("channel", "7"))
        assert await tx.forget_removal("channel", "7") is True
        assert await tx.forget_removal("channel", "7") is False
        assert await tx.removals() == [unfinished, dropped]
    await store.close()
    async with opened(backend.store()) as again:
        assert await again.removals() == [unfinished, dropped]
        async with again.transaction() as tx:
            await tx.add_removal(Removal("dataset", "a", NOON))
            with pytest.raises(InputError):
                await tx.add_removal(Removal("dataset", "a\0b"))
        assert await again.removals() == [dropped, Removal("dataset", "a", NOON)]


async def test_an_entry_and_its_removal_change_together_or_not_at_all(store: ClusterStore) -> None:
    async with store.transaction() as tx:
        await tx.add_removal(Removal("dataset", "a"))
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - a transaction is a block of statements
        async with store.transaction() as tx:
            await tx.add_entry("dataset", "Default", "D", {})
            await tx.forget_removal("dataset", "a")
            raise ZeroDivisionError
    assert await store.entries() == []
    assert await store.removals() == [Removal("dataset", "a")]
