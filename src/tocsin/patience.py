"""Waiting for what cannot be stopped half-way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def to_the_end(work: Awaitable[T], *, on_cancel: Callable[[], None] = lambda: None) -> T:
    """What the work answers. Whoever cancels never finds it still running: it is waited for first, however often that
    happens; `on_cancel` may tell it to hurry."""
    future = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError as stop:
            cancelled = stop
            on_cancel()
    if cancelled is not None:
        if not future.cancelled():
            future.exception()
        raise cancelled
    return future.result()
