"""Waits for work that must not be cancelled halfway.

Work in a thread cannot be cancelled. A caller that left it behind would give away a slot, a file or a lock that the
work still uses; so a cancelled caller waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

_T = TypeVar("_T")


async def wait_despite_cancel(work: Awaitable[_T], *, on_cancel: Callable[[], None] = lambda: None) -> _T:
    """Returns the result of the work. A cancelled caller waits until the work has ended, however often it is cancelled,
    and then raises CancelledError. `on_cancel` is called on each cancellation and may make the work hurry."""
    future = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError as cancellation:
            cancelled = cancellation
            on_cancel()
    if cancelled is not None:
        if not future.cancelled():
            future.exception()
        raise cancelled
    return future.result()
