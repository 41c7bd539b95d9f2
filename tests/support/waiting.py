"""Waiting for a condition that nobody announces. A test names what it waits for, where that does not show."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

# How long tests wait for anything before they call it lost. Machines differ in speed: it costs only what fails.
WITHIN_S = float(os.environ.get("TEST_WITHIN_S", "180"))
_LOOK_EVERY_S = 0.005


async def until(what: Callable[[], Any], why: str = "what was waited for", *, within_s: float = WITHIN_S) -> None:
    try:
        async with asyncio.timeout(within_s):
            while not what():
                await asyncio.sleep(_LOOK_EVERY_S)
    except TimeoutError:
        raise AssertionError(f"not within {within_s:g} s: {why}") from None


def wait_until(what: Callable[[], Any], why: str, within_s: float = WITHIN_S) -> None:
    """The same where there is no event loop, or it is not ours: other processes, and clusters on threads."""
    deadline_s = time.monotonic() + within_s
    while not what():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {within_s:g} s: {why}")
        time.sleep(4 * _LOOK_EVERY_S)
