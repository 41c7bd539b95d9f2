"""Counts each subscriber's open connections, and closes them when their token or session ends or the broker stops.

A token is checked when a connection opens, so its end has to close the connection.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tocsin.broker.accounts.accounts import Session
from tocsin.wire.errors import LimitError

_SWEEP_S = 1.0
_EXPIRED = "the token has expired"
_ENDED = "the token was ended"
STOPPING = "the broker is stopping"


class OpenConnections:
    """The open connections of all subscribers, by token and by subscriber."""

    def __init__(self) -> None:
        self._count: Counter[int] = Counter()
        # These are lists, because nearly all have one connection, and a set of one item takes three times the memory.
        self._of_token: dict[str, list[Callable[[str], None]]] = {}
        self._ends_s: dict[str, float] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._of_subscriber: dict[int, list[tuple[str, Callable[[str], None]]]] = {}
        """The connections of a subscriber, each with its session."""
        self._stopping = False

    @property
    def count(self) -> int:
        return sum(self._count.values())

    @contextmanager
    def session(self, who: Session, at_most: int, close: Callable[[str], None]) -> Iterator[None]:
        """Registers a connection of this subscriber; calls `close` with the reason when its token ends."""
        if self._count[who.subscriber] >= at_most:
            raise LimitError(
                f"you have {at_most} connections already",
                status=429,
                hint="close one of them",
                retry=True,
                retry_after_s=5,
            )
        self._count[who.subscriber] += 1
        of_token = self._of_token.setdefault(who.token_id, [])
        of_token.append(close)
        of_subscriber = self._of_subscriber.setdefault(who.subscriber, [])
        of_subscriber.append(entry := (who.session_id, close))
        self._ends_s[who.token_id] = who.expires_us / 1e6
        self._sweep_soon()
        if self._stopping:
            close(STOPPING)
        try:
            yield
        finally:
            self._count[who.subscriber] -= 1
            of_token.remove(close)
            of_subscriber.remove(entry)
            if not self._count[who.subscriber]:
                del self._count[who.subscriber]
                self._of_subscriber.pop(who.subscriber, None)
            if not of_token and self._of_token.get(who.token_id) is of_token:
                del self._of_token[who.token_id]
                del self._ends_s[who.token_id]

    def _sweep_soon(self) -> None:
        """Starts the timer for all connections. A timer for each would take more memory than the rest of its entry."""
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(_SWEEP_S, self._end_expired)

    def _end_expired(self) -> None:
        self._sweep, now_s = None, time.time()
        for token in [token_id for token_id, ends_s in self._ends_s.items() if ends_s <= now_s]:
            for close in list(self._of_token.get(token, ())):
                close(_EXPIRED)
        if self._ends_s:
            self._sweep_soon()

    def close(self) -> None:
        """Closes all connections because the broker stops; clients reconnect later, here or elsewhere."""
        self._stopping = True
        if self._sweep is not None:
            self._sweep.cancel()
        for callbacks in list(self._of_token.values()):
            for close in list(callbacks):
                close(STOPPING)

    def end(self, who: Session) -> None:
        """Closes all connections of the session, because its tokens have ended."""
        for session, close in list(self._of_subscriber.get(who.subscriber, ())):
            if session == who.session_id:
                close(_ENDED)

    def end_all(self, subscriber: int) -> None:
        """Closes all connections of the subscriber, because all its tokens have ended."""
        for _, close in list(self._of_subscriber.get(subscriber, ())):
            close(_ENDED)
