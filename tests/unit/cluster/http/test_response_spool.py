"""Answers that wait for clients who read slowly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.cluster.http.response_spool import ResponseSpool
from tocsin.serving.limits import MemoryBudget
from tocsin.wire.errors import LimitError


def no_limit(_size_bytes: int) -> None:
    pass


def spool(grow: Callable[[int], None] = no_limit, *, patience_s: float = 30.0, **more: int) -> ResponseSpool:
    return ResponseSpool(grow, patience_s=patience_s, memory_bytes=more.get("memory_bytes", 10))


async def taken(of: ResponseSpool) -> bytes:
    found = []
    while (some := await of.take()) is not None:
        found.append(some)
    return b"".join(found)


@given(st.lists(st.binary(min_size=1, max_size=30)), st.lists(st.booleans()))
async def test_what_is_put_is_taken_in_its_order(pieces: list[bytes], takes: list[bool]) -> None:
    made = spool()
    found = []
    for piece, takes_one in zip(pieces, chain(takes, [False] * len(pieces)), strict=False):
        await made.put(piece)
        if takes_one:
            found.append(await made.take() or b"")
    made.end(b"the end")
    assert b"".join(found) + await taken(made) == b"".join(pieces) + b"the end"
    made.close()


async def test_who_puts_and_who_takes_may_do_so_at_once() -> None:
    made = spool()
    pieces = [bytes([number % 256]) * 3 for number in range(500)]

    async def put() -> None:
        for piece in pieces:
            await made.put(piece)
        made.end()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(put())
        taking = tasks.create_task(taken(made))
    assert taking.result() == b"".join(pieces)
    made.close()


async def test_all_that_nobody_has_taken_waits_and_its_room_is_given_back() -> None:
    room = MemoryBudget(1_000, free_bytes=0)
    with room.share() as grow:
        made = spool(grow)
        for _ in range(10):
            await made.put(b"x" * 100)
        assert room.taken_bytes == 1_000
        made.end()
        await taken(made)
        assert room.taken_bytes == 0
        made.close()


async def test_beyond_its_room_a_script_waits_until_something_is_taken() -> None:
    room = MemoryBudget(100, free_bytes=0)
    with room.share() as grow:
        made = spool(grow)
        await made.put(b"a" * 100)
        putting = asyncio.create_task(made.put(b"b" * 100))
        assert await made.take() == b"a" * 100
        await putting
        made.end()
        assert await taken(made) == b"b" * 100
        made.close()


async def test_a_client_that_takes_nothing_ends_the_script_when_its_patience_is_over() -> None:
    room = MemoryBudget(100, free_bytes=0)
    with room.share() as grow:
        made = spool(grow, patience_s=0.01)
        await made.put(b"a" * 100)
        with pytest.raises(LimitError, match=r"reads too slowly.*may take 100 bytes") as caught:
            await made.put(b"b")
        assert caught.value.status == 429
        made.end(b"told all the same")
        assert (await taken(made)).endswith(b"told all the same")
        made.close()


async def test_once_nobody_takes_any_more_nothing_is_put() -> None:
    made = spool()
    made.break_off(TimeoutError())
    with pytest.raises(ConnectionResetError):
        await made.put(b"x")


async def test_nothing_is_left_in_the_folder(tmp_path: Path) -> None:
    made = ResponseSpool(no_limit, patience_s=1.0, folder=tmp_path, memory_bytes=1)
    await made.put(b"some words")
    assert list(tmp_path.iterdir()) == []
    made.close()
