"""Whoever cancels never finds still running what cannot be stopped half-way."""

from __future__ import annotations

import asyncio

import pytest

from tocsin.uncancellable import wait_despite_cancel


async def test_what_the_work_answers_or_raises_is_passed_on() -> None:
    async def fails() -> None:
        raise ZeroDivisionError

    assert await wait_despite_cancel(asyncio.sleep(0, "done")) == "done"
    with pytest.raises(ZeroDivisionError):
        await wait_despite_cancel(fails())


@pytest.mark.parametrize("fails", [False, True])
async def test_however_often_it_is_cancelled_the_work_ends_first(fails: bool) -> None:
    may_end, told, ended = asyncio.Event(), [], []

    async def work() -> None:
        await may_end.wait()
        ended.append(True)
        if fails:
            raise ZeroDivisionError

    waiting = asyncio.create_task(wait_despite_cancel(work(), on_cancel=lambda: told.append(True)))
    await asyncio.sleep(0)
    for count in (1, 2, 3):
        waiting.cancel()
        await asyncio.sleep(0)
        assert (len(told), waiting.done()) == (count, False)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended
