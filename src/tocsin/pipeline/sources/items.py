"""Splits the answer of a polled address into items with a stable identity.

    json      an array of objects, one object, or objects one after the other
    geojson   the features of a collection, or one feature
    rss       the items of RSS 2.0 (or 1.0), or the entries of Atom

An item has the same identity in every poll: its `id`, its `guid` or its `link`, otherwise a digest of its content. A
caller that remembers the identities takes each item once.
"""

from __future__ import annotations

import hashlib
import json
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from typing import Any, Final

from tocsin.pipeline.sources.formats import geojson, json_text, syndication
from tocsin.pipeline.sources.json_body import array_spans, extra_data, item_pieces, past_space
from tocsin.pipeline.sources.pieces import UNREAD, BodyLimits
from tocsin.pipeline.sources.reader_types import BadRecord, too_long
from tocsin.rules.model import adm
from tocsin.rules.model.json_spans import Spans, TooManyItemsError, object_fields
from tocsin.rules.model.type_check import describe_value
from tocsin.wire.errors import InputError, LimitError

Item = tuple[str, dict[str, Any]]

_LIMITS: Final = BodyLimits(record_bytes=4 << 20)
_IDENTITY_CHARACTERS: Final = 200


def items(body: bytes, format: str, limits: BodyLimits = _LIMITS) -> Iterator[Item]:  # noqa: A002 - what it is everywhere
    """The items of an answer in order, each parsed when it is requested. An InputError names the unreadable place; a
    LimitError says that there are too many items, before the first is parsed if they can be counted.
    """
    read = FORMATS.get(format.lower())
    if read is None:
        raise InputError(f"there is no format {format!r} for a polled address", hint=f"known: {', '.join(FORMATS)}")
    try:
        for position, record in enumerate(read(body, limits)):
            if position == limits.records:
                raise _too_many(limits)
            yield _identity(record), record
    except TooManyItemsError:
        raise _too_many(limits) from None
    except BadRecord as error:
        raise InputError(f"the answer cannot be read: {error.reason}", line=error.place, column=error.column) from None
    except json_text.NotJson as error:
        raise InputError(f"the answer {error}", line=error.line, column=error.column) from None
    except ValueError as error:
        raise InputError(f"the answer cannot be read: {error}") from None


def _too_many(limits: BodyLimits) -> LimitError:
    return LimitError(f"the answer holds more than {limits.records} items")


def _objects(body: bytes, limits: BodyLimits) -> Iterator[dict[str, Any]]:
    text = body.removeprefix(BOM_UTF8)
    begin = past_space(text, 0)
    if text[begin : begin + 1] != b"[":
        yield from (record for _, record, _ in json_text.read(BytesIO(body)))
        return
    spans = array_spans(text, begin, limits)
    if (after := past_space(text, spans.end)) < len(text):
        raise extra_data(text, after, spans, limits)
    for position, value in enumerate(_values(text, spans, limits)):
        if value.__class__ is not dict:
            raise ValueError(f"item {position}: expected an object, got {describe_value(value)}")
        yield value


def _features(body: bytes, limits: BodyLimits) -> Iterator[dict[str, Any]]:
    """Counts the features of a collection first, and parses each when it is needed."""
    text = body.removeprefix(BOM_UTF8)
    for (name_begin, name_end), (begin, _) in object_fields(text, past_space(text, 0)):
        if text[begin : begin + 1] == b"[" and json_text.parse_quickly(text[name_begin:name_end]) == "features":
            spans = array_spans(text, begin, limits)
            around = json_text.parse_quickly(text[: begin + 1] + text[spans.end - 1 :])
            return geojson.records({**around, "features": _values(text, spans, limits)})
    if len(text) > limits.record_bytes:
        raise too_long(1, limits.record_bytes)
    return geojson.records(json_text.parse_quickly(text))


def _values(text: bytes, spans: Spans, limits: BodyLimits) -> Iterator[Any]:
    for position, piece in enumerate(item_pieces(text, spans, limits)):
        if piece.value is UNREAD:
            raise ValueError(f"item {position}: {too_long(0, limits.record_bytes).reason}")
        if isinstance(piece.value, BadRecord):
            raise piece.value
        yield piece.value


FORMATS: Final[Mapping[str, Callable[[bytes, BodyLimits], Iterator[dict[str, Any]]]]] = {
    "json": _objects,
    "geojson": _features,
    "rss": lambda body, _limits: syndication.records(body),
}


def _identity(record: dict[str, Any]) -> str:
    for name in ("id", "guid", "link"):
        value = record.get(name)
        if (isinstance(value, str) and value.strip()) or (isinstance(value, int) and not isinstance(value, bool)):
            # 7 and "7" are different identities.
            named = f"{name} {json.dumps(value, ensure_ascii=False)}"
            return named if len(named) <= _IDENTITY_CHARACTERS else f"{name} sha256 {_digest(named)}"
    return f"sha256 {_digest(adm.dumps(_ordered(record)))}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _ordered(value: Any) -> Any:
    """The same value with the fields of every object in a fixed order, because a publisher may change their order."""
    if isinstance(value, dict):
        return {name: _ordered(value[name]) for name in sorted(value)}
    return [_ordered(item) for item in value] if isinstance(value, list) else value
