"""Publishing through the broker: records go on to the cluster's feeds, and its answer comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from io import BytesIO
from typing import Final
from urllib.parse import quote

import orjson

from tocsin.broker.accounts.accounts import Accounts, Session
from tocsin.broker.cluster_link.client import ClusterClient, ForwardedAnswer
from tocsin.broker.counters import BrokerCounters
from tocsin.broker.subscriptions import full_name
from tocsin.rules.model.json_spans import BrokenArrayError, TooManyItemsError, array_items
from tocsin.settings.broker import BrokerSettings
from tocsin.wire.errors import ForbiddenError, InputError, LimitError

RECORDS_LIMIT: Final = 100_000
RECORD_LIMIT_BYTES: Final = 4 << 20
"""The cluster takes no more in one body, and no record that is nearly as long."""


class FeedForwarder:
    def __init__(
        self, client: ClusterClient, accounts: Accounts, settings: BrokerSettings, figures: BrokerCounters
    ) -> None:
        self._client = client
        self._accounts = accounts
        self._settings = settings.publish
        self._broker = quote(settings.name, safe="")
        self._figures = figures

    def check(self, who: Session, feed: str) -> str:
        """The feed's full name; ForbiddenError where its records are not taken from there."""
        name = full_name(feed)
        if not self._accounts.rights(who.application).may_publish(name):
            raise ForbiddenError(f"the application {who.application_name} may not publish to the feed {name[:200]}")
        return name

    async def publish(
        self, who: Session, feed: str, body: bytes, *, wait: str | None = None, key: str | None = None
    ) -> ForwardedAnswer:
        name = self.check(who, feed)
        if wait not in (None, "", "visible"):
            raise InputError('wait: must be "visible"')
        if self._settings.user_field:
            # On a thread: it may be large.
            body = await asyncio.to_thread(with_user, body, self._settings.user_field, who.user)
        # Another user's key must not be taken for this one's; each broker counts its subscribers by itself.
        headers = {} if key is None else {"Idempotency-Key": f"{self._broker}:{who.subscriber}:{key}"}
        query = "wait=visible" if wait else ""
        answered = await self._client.publish(name, query, body, headers, self._settings.timeout_s)
        status = str(answered.status)
        self._figures.published[status] = self._figures.published.get(status, 0) + 1
        return answered


def with_user(body: bytes, field: str, user: str) -> bytes:
    """The same records, one after the other or in an array, each with the user's name in the field.

    They are counted first, and held one by one: a record takes many times as much memory as its text.
    """
    made = BytesIO()
    for place, text in enumerate(_records(body), 1):
        if place > RECORDS_LIMIT:
            raise _too_many()
        if len(text) > RECORD_LIMIT_BYTES:
            raise LimitError(f"record {place}: is longer than {RECORD_LIMIT_BYTES} bytes")
        try:
            record = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise InputError(f"record {place}: {error.msg}", hint="records are published here as JSON") from None
        if not isinstance(record, dict):
            raise InputError(f"record {place}: expected a JSON object")
        record[field] = user
        made.write(orjson.dumps(record))
        made.write(b"\n")
    return made.getvalue()


def _records(body: bytes) -> Iterator[bytes]:
    """The texts of an array's items; else the only record where that is over several lines, or a record per line."""
    text = body.strip()
    if text.startswith(b"["):
        try:
            spans = array_items(text, 0, most=RECORDS_LIMIT)
        except TooManyItemsError:
            raise _too_many() from None
        except BrokenArrayError as error:
            raise InputError(
                f"record {len(error.spans) + 1}: {error}", hint="records are published here as JSON"
            ) from None
        if spans.end < len(text):
            raise InputError("there is more behind the array", hint="send an array, or one record per line")
        yield from (text[begin:end] for begin, end in spans)
    elif len(text) <= RECORD_LIMIT_BYTES and _is_one(text):
        yield text
    else:
        yield from (line for line in BytesIO(text) if line.strip())


def _is_one(text: bytes) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _too_many() -> LimitError:
    return LimitError(f"the body holds more than {RECORDS_LIMIT} records", hint="send it in parts")
