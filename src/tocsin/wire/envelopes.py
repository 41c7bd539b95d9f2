"""Event envelopes: CloudEvents 1.0 in JSON, the same bytes for all subscribers of an interest.

    {"specversion":"1.0","type":"tocsin.results","source":"/brokers/v.b","id":"17/<after>/<to>","time":"…Z",
     "datacontenttype":"application/json","channel":"v.c","interest":"17",
     "data":{"after":"…","to":"…","results":[{"cursor":"…","executed_at":"…Z","result":{…}},…],
             "recovered":true,"gap":null,"more":false}}

`tocsin.results` holds every result of the interest in `(after, to]`, in order. `recovered` is false exactly if `gap` is
a cursor: results up to it that are not included no longer exist. `more` says that further results follow. The other
types are `tocsin.available` with `{"to"}` (there are results to pull) and `tocsin.ended` with `{"reason"}`.

The JSON of a result is never parsed: items and envelopes are joined from bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

import orjson

from tocsin.rules.model.cursors import Cursor, InterestId
from tocsin.wire.cursors import cursor_text
from tocsin.wire.errors import InputError
from tocsin.wire.messages import InterestText, JsonObject, Message, object_schema

RESULTS: Final = "tocsin.results"
AVAILABLE: Final = "tocsin.available"
ENDED: Final = "tocsin.ended"

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - UTC, as everything on the wire


# --- writing


def _source_of(broker: str) -> str:
    """The `source` of a broker's events, percent-encoded as a URI reference."""
    return f"/brokers/{quote(broker, safe='')}"


def moment_text(at_us: int) -> str:
    """Microseconds since 1970 in the wire's time format."""
    return (_EPOCH + timedelta(microseconds=at_us)).isoformat() + "Z"


def item(cursor: Cursor, executed_us: int, result: bytes) -> bytes:
    """A result as it stands in `results`. Encode it once when the result arrives, and keep only this."""
    head = f'{{"cursor":"{cursor_text(cursor)}","executed_at":"{moment_text(executed_us)}","result":'
    return b"".join((head.encode(), result, b"}"))


class EnvelopeWriter:
    """Encodes the envelopes of one broker."""

    def __init__(self, broker: str) -> None:
        self._source = orjson.dumps(_source_of(broker)).decode()

    def results(
        self,
        channel: str,
        interest: InterestId,
        after: Cursor,
        to: Cursor,
        items: Iterable[bytes],
        *,
        at_us: int,
        gap: Cursor | None = None,
        more: bool = False,
    ) -> bytes:
        """`items` are all results in `(after, to]`, in order, as `item` encodes them. `at_us` is the present time."""
        begin, end = cursor_text(after), cursor_text(to)
        head = self._head(RESULTS, f"{interest}/{begin}/{end}", channel, interest, at_us)
        recovered = "true" if gap is None else "false"
        gap_json = "null" if gap is None else f'"{cursor_text(gap)}"'
        tail = f'],"recovered":{recovered},"gap":{gap_json},"more":{"true" if more else "false"}}}}}'
        data = f'{{"after":"{begin}","to":"{end}","results":['
        return b"".join(((head + data).encode(), b",".join(items), tail.encode()))

    def available(self, channel: str, interest: InterestId, to: Cursor, *, at_us: int) -> bytes:
        end = cursor_text(to)
        return f'{self._head(AVAILABLE, f"{interest}//{end}", channel, interest, at_us)}{{"to":"{end}"}}}}'.encode()

    def end(self, channel: str, interest: InterestId, reason: str, *, at_us: int) -> bytes:
        data = orjson.dumps({"reason": reason}).decode()
        return f"{self._head(ENDED, f'{interest}//ended-{at_us}', channel, interest, at_us)}{data}}}".encode()

    def _head(self, kind: str, identity: str, channel: str, interest: InterestId, at_us: int) -> str:
        return (
            f'{{"specversion":"1.0","type":"{kind}","source":{self._source},"id":"{identity}",'
            f'"time":"{moment_text(at_us)}","datacontenttype":"application/json",'
            f'"channel":{orjson.dumps(channel).decode()},"interest":"{interest}","data":'
        )


def server_sent(kind: str, envelope: bytes, *, interest: InterestId, to: Cursor | None = None) -> bytes:
    """An envelope as a server-sent event. With `to` its id is `interest/to`, which a reconnecting browser sends."""
    mark = b"" if to is None else f"id: {interest}/{cursor_text(to)}\n".encode()
    # Line ends in JSON strings are escaped; a line end between tokens would end the data line of the event.
    line = envelope.replace(b"\r", b" ").replace(b"\n", b" ") if b"\n" in envelope or b"\r" in envelope else envelope
    return b"".join((mark, b"event: ", kind.encode(), b"\ndata: ", line, b"\n\n"))


# --- reading


@dataclass(frozen=True, slots=True)
class ResultItem(Message):
    """A result of an interest: the row that the channel's query produced, and when."""

    cursor: Cursor
    executed_at: datetime
    result: Any


@dataclass(frozen=True, slots=True)
class ResultsEvent(Message):
    """Every result of the interest in `(after, to]`. `gap`: results up to it that are not included no longer exist."""

    channel: str
    interest: InterestText
    after: Cursor
    to: Cursor
    results: tuple[ResultItem, ...]
    gap: Cursor | None
    more: bool


@dataclass(frozen=True, slots=True)
class Available(Message):
    """The interest has results up to `to` that can be pulled."""

    channel: str
    interest: InterestText
    to: Cursor


@dataclass(frozen=True, slots=True)
class Ended(Message):
    """The subscription has ended for this reason."""

    channel: str
    interest: InterestText
    reason: str


WireEvent = ResultsEvent | Available | Ended
_EVENTS: Final[dict[str, type[WireEvent]]] = {RESULTS: ResultsEvent, AVAILABLE: Available, ENDED: Ended}


def envelope_schema(kind: str) -> JsonObject:
    """The JSON schema of an envelope of this type."""
    data = object_schema(_EVENTS[kind])["properties"]
    outer = {"channel": data.pop("channel"), "interest": data.pop("interest")}
    if kind == RESULTS:
        data["recovered"] = {"type": "boolean"}
    text = {"type": "string"}
    properties = {
        "specversion": {"const": "1.0"},
        "type": {"const": kind},
        "source": text,
        "id": text,
        "time": text,
        "datacontenttype": {"const": "application/json"},
        **outer,
        "data": {"type": "object", "properties": data, "required": list(data)},
    }
    return {"type": "object", "properties": properties, "required": list(properties)}


def event_of(value: Any) -> WireEvent | None:
    """The event of a decoded envelope; None for an unknown type. Raises InputError if it is not an envelope."""
    try:
        if value["specversion"] != "1.0":
            raise InputError(f"this is not an envelope of CloudEvents 1.0: {str(value['specversion'])[:60]}")
        if (kind := _EVENTS.get(value["type"])) is None:
            return None
        return kind.parse({**value["data"], "channel": value["channel"], "interest": value["interest"]})
    except (KeyError, TypeError) as error:
        raise InputError(f"this is not an envelope: {error!r}") from None
