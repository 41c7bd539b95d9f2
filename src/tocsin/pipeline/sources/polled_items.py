"""Turns the items of a polled address into records that fit a type, each checked by itself.

An item that does not fit must not hold back the others of the same answer: it becomes a dead letter, with its text as
far as it can be written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import orjson

from tocsin.pipeline.sources import decoder as decoding
from tocsin.pipeline.sources.decoder import BATCH_RECORDS, BodyLimits, Decode, DecodedRecord
from tocsin.pipeline.sources.items import items
from tocsin.pipeline.sources.reader_types import too_long
from tocsin.rules.model.json_form import plain, reader
from tocsin.rules.model.type_check import RecordError
from tocsin.rules.model.types import ObjectType

RecordDecoder = Callable[[Iterable[dict[str, Any]]], list[DecodedRecord]]


def judge(kind: ObjectType, limits: BodyLimits | None = None) -> RecordDecoder:
    """Returns a function from items to decoded records, in their order. Make it once; any thread may use it."""
    check = reader(kind)
    limit_bytes = (limits or BodyLimits()).record_bytes

    def judged(found: Iterable[dict[str, Any]]) -> list[DecodedRecord]:
        decoded = []
        for index, item in enumerate(found):
            text = _text(item)
            if len(text) > limit_bytes:
                decoded.append(DecodedRecord(index, None, "", too_long(0, limit_bytes).reason, text[:limit_bytes]))
                continue
            try:
                decoded.append(DecodedRecord(index, check(item)))
            except RecordError as error:
                decoded.append(DecodedRecord(index, None, error.field, error.reason, text))
        return decoded

    return judged


def decoder(format: str, kind: ObjectType) -> Decode:  # noqa: A002 - what it is everywhere
    """A decoder for a body that a client publishes instead: it returns all items of the body."""
    if format == "json":
        return decoding.decoder(format, kind)
    judged = judge(kind)

    def decode(body: bytes) -> Iterator[list[DecodedRecord]]:
        records = (record for _, record in items(body, format))
        index = 0
        while batch := judged(islice(records, BATCH_RECORDS)):
            yield [decoded._replace(index=index + position) for position, decoded in enumerate(batch)]
            index += len(batch)

    return decode


def _text(item: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(plain(item))
    except (TypeError, RecursionError):  # a number beyond 64 bits, a lone surrogate, too many levels
        pass
    try:
        return json.dumps(plain(item)).encode()
    except RecursionError:
        return b""
