"""What a polled address answered, as items that are told apart from poll to poll.

    json      an array of objects, one object, or objects one after the other
    geojson   the features of a collection, or one feature
    rss       the items of RSS 2.0 (or 1.0), or the entries of Atom

Each item has an identity that is the same whenever it is seen again: its `id`, its `guid` or its `link`, else a digest
of all it holds. Who remembers the identities takes each item once.
"""

from __future__ import annotations

import hashlib
import json
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from typing import Any, Final

from tocsin.pipeline.readers import geojson, json_text, syndication
from tocsin.pipeline.readers.found import BadRecord
from tocsin.rules.model import adm
from tocsin.rules.model.checking import shown
from tocsin.wire.errors import InputError, LimitError

Item = tuple[str, dict[str, Any]]

ITEMS_LIMIT: Final = 100_000
_IDENTITY_CHARACTERS: Final = 200


def items(body: bytes, format: str) -> list[Item]:  # noqa: A002 - what it is everywhere
    """The items of an answer, in its order; InputError names the place where it cannot be read."""
    read = FORMATS.get(format.lower())
    if read is None:
        raise InputError(f"there is no format {format!r} for a polled address", hint=f"known: {', '.join(FORMATS)}")
    found: list[Item] = []
    try:
        for record in read(body):
            if len(found) == ITEMS_LIMIT:
                raise LimitError(f"the answer holds more than {ITEMS_LIMIT} items")
            found.append((_identity(record), record))
    except BadRecord as error:
        raise InputError(f"the answer cannot be read: {error.reason}", line=error.place, column=error.column) from None
    except json_text.NotJson as error:
        raise InputError(f"the answer {error}", line=error.line, column=error.column) from None
    except ValueError as error:
        raise InputError(f"the answer cannot be read: {error}") from None
    return found


def _objects(body: bytes) -> Iterator[dict[str, Any]]:
    if body.removeprefix(BOM_UTF8).lstrip().startswith(b"["):
        for place, value in enumerate(json_text.parse_quickly(body.removeprefix(BOM_UTF8))):
            if value.__class__ is not dict:
                raise ValueError(f"item {place}: expected an object, got {shown(value)}")
            yield value
    else:
        yield from (record for _, record, _ in json_text.read(BytesIO(body)))


def _features(body: bytes) -> Iterator[dict[str, Any]]:
    return geojson.records(json_text.parse_quickly(body.removeprefix(BOM_UTF8)))


FORMATS: Final[Mapping[str, Callable[[bytes], Iterator[dict[str, Any]]]]] = {
    "json": _objects,
    "geojson": _features,
    "rss": syndication.records,
}


def _identity(record: dict[str, Any]) -> str:
    for name in ("id", "guid", "link"):
        value = record.get(name)
        if (isinstance(value, str) and value.strip()) or (isinstance(value, int) and not isinstance(value, bool)):
            # 7 and "7" are two.
            named = f"{name} {json.dumps(value, ensure_ascii=False)}"
            return named if len(named) <= _IDENTITY_CHARACTERS else f"{name} sha256 {_digest(named)}"
    return f"sha256 {_digest(adm.dumps(_ordered(record)))}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _ordered(value: Any) -> Any:
    """The same with the fields of every object in one order: who writes them may change it."""
    if isinstance(value, dict):
        return {name: _ordered(value[name]) for name in sorted(value)}
    return [_ordered(item) for item in value] if isinstance(value, list) else value
