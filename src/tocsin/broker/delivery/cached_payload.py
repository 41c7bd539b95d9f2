"""The payload of a cached result: its bytes as they stand in an envelope, encoded once, and its execution time."""

from __future__ import annotations

from typing import NamedTuple

from tocsin.rules.caching.entries import BrokerResult
from tocsin.wire.envelopes import item
from tocsin.wire.results import FetchedResult


class CachedPayload(NamedTuple):
    """The payload of a cached result."""

    item: bytes
    executed_us: int


def to_broker_result(one: FetchedResult) -> BrokerResult:
    """A fetched result as the cache keeps it, with its envelope item as the payload."""
    text = item(one.cursor, one.executed_us, one.payload)
    return BrokerResult(one.cursor, len(text), CachedPayload(text, one.executed_us))
