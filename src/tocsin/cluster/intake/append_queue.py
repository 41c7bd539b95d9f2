"""Who waits for the intake log, what goes into one write, and how those who wait are told."""

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
    """What became of an append.

    `position` is the log's position after the entry: the entry has landed when that one has. `repeated`: the key was
    known, and position and answer are those of its first request.
    """

    position: int
    answer: bytes
    repeated: bool


@dataclass(slots=True, eq=False)
class PendingAppend:
    """An append on its way, and who waits for it: more than one where requests share a key."""

    payload: bytes
    rows: int
    key: str | None
    encoded_key: bytes | None
    answer: bytes
    size_bytes: int
    waiting: list[tuple[asyncio.Future[AppendedRange], bool]]


@dataclass(frozen=True, slots=True, eq=False)
class ReadWaiter:
    """One who waits for something after a position."""

    after: int
    woken: asyncio.Future[None]


Outcome = tuple["asyncio.Future[Any]", "AppendedRange | TocsinError | None"]


def grouped(asked: list[PendingAppend]) -> Iterator[list[PendingAppend]]:
    """What goes into one write each."""
    group: list[PendingAppend] = []
    size_bytes = 0
    for each in asked:
        if group and size_bytes + each.size_bytes > _GROUP_BYTES:
            yield group
            group, size_bytes = [], 0
        group.append(each)
        size_bytes += each.size_bytes
    if group:
        yield group


def tell(outcomes: Iterable[Outcome]) -> None:
    """One call into each loop, however many wait there."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Outcome]] = {}
    for outcome in outcomes:
        by_loop.setdefault(outcome[0].get_loop(), []).append(outcome)
    for loop, theirs in by_loop.items():
        with suppress(RuntimeError):  # the loop has ended, and whoever waited with it
            loop.call_soon_threadsafe(_settle, theirs)


def _settle(outcomes: list[Outcome]) -> None:
    for done, outcome in outcomes:
        if done.done():
            continue
        if isinstance(outcome, TocsinError):
            # Each gets its own: raising one adds to it.
            done.set_exception(copy.copy(outcome))
        else:
            done.set_result(outcome)
