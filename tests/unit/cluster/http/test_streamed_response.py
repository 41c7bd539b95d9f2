"""Streamed answers whose clients read slowly, late or never."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import chain
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from tests.support.waiting import WITHIN_S
from tocsin.cluster.http.script_responses import StreamedResponse
from tocsin.cluster.statements.outcomes import QueryRows, StatementOutcome
from tocsin.serving.limits import BudgetShare, MemoryBudget
from tocsin.wire.errors import LimitError, StatementError


class FakeClient:
    """Takes the place of the connection: `reads` counts the pieces that the client still reads; None: all of them."""

    def __init__(self, reads: int | None = None) -> None:
        self.received = b""
        self.is_aborted = False
        self._reads = reads
        self._read = asyncio.Event()

    def read(self, pieces: int | None = None) -> None:
        self._reads = None if pieces is None else (self._reads or 0) + pieces
        self._read.set()

    async def write(self, piece: bytes) -> None:
        while self._reads == 0:
            self._read.clear()
            await self._read.wait()
        if self._reads is not None:
            self._reads -= 1
        self.received += piece

    @property
    def lines(self) -> list[Any]:
        return [orjson.loads(line) for line in self.received.splitlines()]

    def respond(
        self, space: BudgetShare | None = None, write_timeout_s: float = WITHIN_S, **more: float
    ) -> StreamedResponse:
        transport = SimpleNamespace(abort=lambda: setattr(self, "is_aborted", True))
        request: Any = SimpleNamespace(transport=transport)
        response: Any = SimpleNamespace(prepared=False, write=self.write)

        async def prepare(_request: web.Request) -> None:
            response.prepared = True

        response.prepare = prepare
        share = space or BudgetShare(MemoryBudget(1 << 40), ())
        return StreamedResponse(request, share, write_timeout_s, response=response, **more)


class FakeRows:
    """Rows that wait on the disk; `closed` says whether their space is free again."""

    def __init__(self, *batches: Sequence[Any], held_bytes: int = 0, error: Exception | None = None) -> None:
        self.closed = False
        self._batches = batches
        self._error = error
        self._held_bytes = held_bytes

    def outcome(self, number: int = 1) -> StatementOutcome:
        return StatementOutcome(number, "query", {}, QueryRows(self._rows(), self._held_bytes, self._remove))

    async def _rows(self) -> AsyncIterator[list[bytes]]:
        for batch in self._batches:
            yield [orjson.dumps(row) for row in batch]
        if self._error is not None:
            raise self._error

    async def _remove(self) -> None:
        self.closed = True


def lines_of(number: int, rows: Sequence[Any]) -> list[Any]:
    return [
        *({"statement": number, "row": row} for row in rows),
        {"statement": number, "kind": "query", "rows": len(rows)},
    ]


@given(st.lists(st.lists(st.lists(st.integers(-9, 9), max_size=5), max_size=3), max_size=5))
async def test_all_rows_of_all_statements_come_in_their_order(statements: list[list[list[int]]]) -> None:
    client = FakeClient()
    answer = client.respond()
    stored = [FakeRows(*batches) for batches in statements]
    for number, rows in enumerate(stored, start=1):
        await answer.take(rows.outcome(number))
    await answer.finish()
    expected = [lines_of(number, list(chain(*batches))) for number, batches in enumerate(statements, start=1)]
    assert client.lines == list(chain(*expected))
    assert all(rows.closed for rows in stored)
    await answer.close()


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), max_size=8))
async def test_rows_come_in_their_order_however_the_client_reads_meanwhile(steps: list[tuple[int, int]]) -> None:
    client = FakeClient(reads=0)
    answer = client.respond()
    for number, (rows, reads) in enumerate(steps, start=1):
        await answer.take(FakeRows(list(range(rows))).outcome(number))
        client.read(reads)
        await asyncio.sleep(0)
    client.read()
    await answer.finish()
    assert client.lines == list(chain(*(lines_of(number, range(rows)) for number, (rows, _) in enumerate(steps, 1))))
    await answer.close()


async def test_a_script_goes_on_although_its_client_reads_nothing() -> None:
    client = FakeClient(reads=0)
    answer = client.respond()
    stored = [FakeRows([number]) for number in range(20)]
    for number, rows in enumerate(stored):
        await answer.take(rows.outcome(number))
    assert client.received == b""
    client.read()
    await answer.finish()
    assert client.lines == list(chain(*(lines_of(number, [number]) for number in range(20))))
    await answer.close()


async def test_rows_that_nobody_has_read_take_their_space_until_they_are_sent() -> None:
    budget = MemoryBudget(1_000, free_bytes=0)
    with budget.share() as space:
        client = FakeClient(reads=0)
        answer = client.respond(space)
        for number in range(10):
            await answer.take(FakeRows([number], held_bytes=100).outcome(number))
        assert budget.taken_bytes == 1_000
        client.read()
        await answer.finish()
        assert budget.taken_bytes == 0
        await answer.close()


async def test_beyond_the_limit_a_script_waits_until_its_client_has_read() -> None:
    budget = MemoryBudget(100, free_bytes=0)
    with budget.share() as space:
        client = FakeClient(reads=0)
        answer = client.respond(space)
        await answer.take(FakeRows(["a"], held_bytes=100).outcome(1))
        taking = asyncio.create_task(answer.take(FakeRows(["b"], held_bytes=100).outcome(2)))
        await asyncio.sleep(0)
        assert not taking.done()
        client.read(2)  # the row and the end of the first statement
        await taking
        client.read()
        await answer.finish()
        assert client.lines == [*lines_of(1, ["a"]), *lines_of(2, ["b"])]
        await answer.close()


async def test_an_answer_larger_than_the_limit_is_sent_to_a_client_that_reads() -> None:
    with MemoryBudget(100, free_bytes=0).share() as space:
        client = FakeClient()
        answer = client.respond(space)
        await answer.take(FakeRows(*([number] * 50 for number in range(50)), held_bytes=10_000).outcome())
        await answer.finish()
        assert len(client.lines) == 2_501
        await answer.close()


async def test_a_client_that_reads_nothing_ends_the_script_when_its_patience_is_over() -> None:
    with MemoryBudget(100, free_bytes=0).share() as space:
        client = FakeClient(reads=0)
        answer = client.respond(space, patience_s=0.01)
        await answer.take(FakeRows(["a"], held_bytes=100).outcome(1))
        with pytest.raises(LimitError, match=r"reads too slowly.*may take 100 bytes") as caught:
            await answer.take(FakeRows(["b"], held_bytes=1).outcome(2))
        assert caught.value.status == 429
        client.read()
        await answer.fail(caught.value)
        assert client.lines[0] == {"statement": 1, "row": "a"}
        assert client.lines[-1]["error"]["message"].startswith("the client reads too slowly")
        assert not any(line.get("row") == "b" for line in client.lines), "the answer is cut off"
        await answer.close()


async def test_an_answer_over_the_limit_takes_all_the_space_that_is_left() -> None:
    budget = MemoryBudget(100, free_bytes=0)
    with budget.share() as space:
        client = FakeClient(reads=0)
        answer = client.respond(space)
        taking = asyncio.create_task(answer.take(FakeRows(["a"], held_bytes=1_000).outcome()))
        await asyncio.sleep(0)
        assert budget.taken_bytes == 100
        client.read()
        await taking
        await answer.finish()
        assert budget.taken_bytes == 0
        await answer.close()


async def test_a_client_that_reads_nothing_loses_its_connection_and_the_script_ends() -> None:
    client = FakeClient(reads=0)
    answer = client.respond(write_timeout_s=0.01)
    rows = FakeRows(["a"])
    await answer.take(rows.outcome(1))
    async with asyncio.timeout(WITHIN_S):
        while not client.is_aborted:
            await asyncio.sleep(0.001)
    with pytest.raises(ConnectionResetError):
        await answer.take(FakeRows(["b"]).outcome(2))
    await answer.close()
    assert rows.closed


async def test_rows_that_cannot_be_encoded_get_a_status_of_their_own_before_anything_is_sent() -> None:
    client = FakeClient()
    answer = client.respond()
    error = StatementError("nested too deep")
    await answer.take(FakeRows(error=error).outcome())
    with pytest.raises(StatementError):
        await answer.finish()
    refused = await answer.fail(error)
    assert (refused.status, client.received) == (400, b"")
    await answer.close()


async def test_rows_that_cannot_be_encoded_end_an_answer_that_has_begun() -> None:
    client = FakeClient()
    answer = client.respond()
    error = StatementError("nested too deep")
    await answer.take(FakeRows(["a"], error=error).outcome())
    with pytest.raises(StatementError):
        await answer.finish()
    await answer.fail(error)
    assert client.lines[0] == {"statement": 1, "row": "a"}
    assert [line["error"]["message"] for line in client.lines[1:]] == ["nested too deep"]
    await answer.close()


async def test_a_closed_answer_leaves_nothing_behind() -> None:
    client = FakeClient(reads=0)
    answer = client.respond()
    stored = [FakeRows([number]) for number in range(3)]
    for number, rows in enumerate(stored):
        await answer.take(rows.outcome(number))
    await answer.close()
    assert all(rows.closed for rows in stored)
