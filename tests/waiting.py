"""Waiting for a condition that nobody announces. A test names what it waits for, where that does not show."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

_WITHIN_S = 30.0
_LOOK_EVERY_S = 0.005


async def until(what: Callable[[], Any], why: str = "what was waited for", *, within_s: float = _WITHIN_S) -> None:
    try:
        async with asyncio.timeout(within_s):
            while not what():
                await asyncio.sleep(_LOOK_EVERY_S)
    except TimeoutError:
        raise AssertionError(f"not within {within_s:g} s: {why}") from None


def wait_until(what: Callable[[], Any], why: str, within_s: float = _WITHIN_S) -> None:
    """The same where there is no event loop, or it is not ours: other processes, and clusters on threads."""
    deadline_s = time.monotonic() + within_s
    while not what():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {within_s:g} s: {why}")
        time.sleep(4 * _LOOK_EVERY_S)
