"""Appends that wait for the writer thread: grouped into writes, and answered when they are on the disk."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from tocsin.wire.errors import TocsinError

_GROUP_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class AppendedRange:
    """The outcome of an append.

    `position` is the position after the entry: the entry has landed when the datasets have reached it. `repeated` means
    that the key was known; position and answer are then those of its first request.
    """

    position: int
    answer: bytes
    repeated: bool


@dataclass(slots=True, eq=False)
class PendingAppend:
    """An append that is under way, with the futures of its callers: several if requests share a key."""

    payload: bytes
    rows: int
    key: str | None
    encoded_key: bytes | None
    answer: bytes
    size_bytes: int
    waiting: list[tuple[asyncio.Future[AppendedRange], bool]]


@dataclass(frozen=True, slots=True, eq=False)
class ReadWaiter:
    """A caller that waits for an entry after a position."""

    after: int
    woken: asyncio.Future[None]


Outcome = tuple["asyncio.Future[Any]", "AppendedRange | TocsinError | None"]


def group_appends(asked: list[PendingAppend]) -> Iterator[list[PendingAppend]]:
    """Splits the appends into groups; each group becomes one write."""
    group: list[PendingAppend] = []
    size_bytes = 0
    for append in asked:
        if group and size_bytes + append.size_bytes > _GROUP_BYTES:
            yield group
            group, size_bytes = [], 0
        group.append(append)
        size_bytes += append.size_bytes
    if group:
        yield group


def tell(outcomes: Iterable[Outcome]) -> None:
    """Sets the outcomes of all futures, with one call into each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Outcome]] = {}
    for outcome in outcomes:
        by_loop.setdefault(outcome[0].get_loop(), []).append(outcome)
    for loop, loop_outcomes in by_loop.items():
        with suppress(RuntimeError):  # the loop has ended, and its futures with it
            loop.call_soon_threadsafe(_settle, loop_outcomes)


def _settle(outcomes: list[Outcome]) -> None:
    for future, outcome in outcomes:
        if future.done():
            continue
        if isinstance(outcome, TocsinError):
            # Give each caller a copy: raising an exception adds a traceback to it.
            future.set_exception(copy.copy(outcome))
        else:
            future.set_result(outcome)
