"""Idle connections, ordered by how dispensable they are. When all slots are taken, an idle connection gives way to a
new one, so that unfinished requests cannot keep out clients that send whole ones."""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from typing import Generic, TypeVar

_C = TypeVar("_C", bound=Hashable)


class IdleReason(Enum):
    """Why a connection is idle, in the order in which connections give way."""

    WITHOUT_HEAD = "has sent no whole head"
    BETWEEN_REQUESTS = "has its answer and asks for nothing more"
    WITHOUT_BODY = "has sent a head and not all of its body"


class IdleConnections(Generic[_C]):
    """The idle connections by reason, each in the order in which they became idle."""

    def __init__(self) -> None:
        # Dictionaries keep insertion order: the connection that has been idle longest comes first.
        self._by_reason: dict[IdleReason, dict[_C, None]] = {spare: {} for spare in IdleReason}

    def add(self, connection: _C, spare: IdleReason) -> None:
        self._by_reason[spare][connection] = None

    def remove(self, connection: _C, spare: IdleReason) -> None:
        del self._by_reason[spare][connection]

    def first(self) -> _C | None:
        """The connection that gives way first; None if none is idle."""
        return next((connection for spare in self._by_reason.values() for connection in spare), None)
