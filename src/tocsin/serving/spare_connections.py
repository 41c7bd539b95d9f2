"""Connections that serve nothing at the moment. Where all places are taken they give way to new ones, so that requests
that are never finished keep out nobody who sends a whole one."""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from typing import Generic, TypeVar

_C = TypeVar("_C", bound=Hashable)


class Spare(Enum):
    """Why a connection serves nothing, in the order in which they give way."""

    WITHOUT_HEAD = "has sent no whole head"
    BETWEEN_REQUESTS = "has its answer and asks for nothing more"
    WITHOUT_BODY = "has sent a head and not all of its body"


class SpareConnections(Generic[_C]):
    def __init__(self) -> None:
        # Dictionaries for their order: what has been spare for longest comes first.
        self._by_reason: dict[Spare, dict[_C, None]] = {spare: {} for spare in Spare}

    def add(self, connection: _C, spare: Spare) -> None:
        self._by_reason[spare][connection] = None

    def remove(self, connection: _C, spare: Spare) -> None:
        del self._by_reason[spare][connection]

    def first(self) -> _C | None:
        """The one that is to give way; None where all of them serve somebody."""
        return next((connection for spare in self._by_reason.values() for connection in spare), None)
