"""Appends that wait for the writer thread: admitted within limits, grouped into writes, and answered when they are on
the disk.

Syncing the disk is what takes time, so all appends that wait share the next sync; limits bound what may wait.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from tocsin.cluster.intake.frames import BODY_LIMIT_BYTES, KEY_LIMIT_BYTES
from tocsin.wire.errors import LimitError, TocsinError

_GROUP_BYTES: Final = 8 << 20
_WAITING_BYTES: Final = 64 << 20  # bytes in memory that may wait for the disk
_RETRY_AFTER_S: Final = 1


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


def settle(outcomes: Iterable[Outcome]) -> None:
    """Sets the outcomes of all futures, with one call into each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Outcome]] = {}
    for outcome in outcomes:
        by_loop.setdefault(outcome[0].get_loop(), []).append(outcome)
    for loop, loop_outcomes in by_loop.items():
        with suppress(RuntimeError):  # the loop has ended, and its futures with it
            loop.call_soon_threadsafe(_set_outcomes, loop_outcomes)


def _set_outcomes(outcomes: list[Outcome]) -> None:
    for future, outcome in outcomes:
        if future.done():
            continue
        if isinstance(outcome, TocsinError):
            # Give each caller a copy: raising an exception adds a traceback to it.
            future.set_exception(copy.copy(outcome))
        else:
            future.set_result(outcome)


def check_size(size_bytes: int, key: bytes | None, limit_bytes: int) -> None:
    """Refuses an append that is too large for the log at any time."""
    if key is not None and len(key) > KEY_LIMIT_BYTES:
        raise LimitError(f"an idempotency key has at most {KEY_LIMIT_BYTES} bytes, this one has {len(key)}")
    limit_bytes = min(limit_bytes, BODY_LIMIT_BYTES)
    if size_bytes > limit_bytes:
        raise LimitError(f"{size_bytes} bytes at once are more than the feed's log may hold ({limit_bytes})")


def check_room(size_bytes: int, unlanded_bytes: int, waiting_bytes: int, limit_bytes: int) -> None:
    """Refuses an append for now (backpressure), while the datasets or the disk are behind."""
    if unlanded_bytes + waiting_bytes + size_bytes > limit_bytes:
        reason = f"the feed is behind: its log may hold {limit_bytes} bytes that have not reached their datasets"
    elif waiting_bytes and waiting_bytes + size_bytes > _WAITING_BYTES:
        reason = f"the disk is behind: {_WAITING_BYTES} bytes may wait to be written"
    else:
        return
    raise LimitError(reason, hint="send again in a moment", status=429, retry=True, retry_after_s=_RETRY_AFTER_S)
