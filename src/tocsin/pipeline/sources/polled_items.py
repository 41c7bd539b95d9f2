"""Items of a polled address as records that fit a type, each judged by itself."""

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

Judge = Callable[[Iterable[dict[str, Any]]], list[DecodedRecord]]


def judge(kind: ObjectType, limits: BodyLimits | None = None) -> Judge:
    """A function from items to what they are as records, in their order. Make once, use often, from any thread."""
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
    """For a body that somebody sends instead: all that is in it."""
    if format == "json":
        return decoding.decoder(format, kind)
    judged = judge(kind)

    def decode(body: bytes) -> Iterator[list[DecodedRecord]]:
        found = (record for _, record in items(body, format))
        index = 0
        while batch := judged(islice(found, BATCH_RECORDS)):
            yield [one._replace(index=index + place) for place, one in enumerate(batch)]
            index += len(batch)

    return decode


def _text(item: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(plain(item))
    except (TypeError, RecursionError):  # a number beyond 64 bits, half of a surrogate pair, too many levels
        pass
    try:
        return json.dumps(plain(item)).encode()
    except RecursionError:
        return b""
