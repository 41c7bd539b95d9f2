"""Publishing through the broker: records go on to the cluster's feeds, and its answer comes back."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import orjson

from tocsin.broker.accounts.accounts import Accounts, Session
from tocsin.broker.shell.cluster_client import Answered, ClusterClient
from tocsin.broker.shell.desk import full_name
from tocsin.broker.shell.figures import Figures
from tocsin.settings.broker import BrokerSettings
from tocsin.wire.errors import ForbiddenError, InputError


class Publisher:
    def __init__(self, client: ClusterClient, accounts: Accounts, settings: BrokerSettings, figures: Figures) -> None:
        self._client = client
        self._accounts = accounts
        self._settings = settings.publish
        self._broker = quote(settings.name, safe="")
        self._figures = figures

    async def publish(
        self, who: Session, feed: str, body: bytes, *, wait: str | None = None, key: str | None = None
    ) -> Answered:
        name = full_name(feed)
        if not self._accounts.rights(who.application).may_publish(name):
            raise ForbiddenError(f"the application {who.application_name} may not publish to the feed {name[:200]}")
        if wait not in (None, "", "visible"):
            raise InputError('wait: must be "visible"')
        if self._settings.user_field:
            body = with_user(body, self._settings.user_field, who.user)
        # Another user's key must not be taken for this one's; each broker counts its subscribers by itself.
        headers = {} if key is None else {"Idempotency-Key": f"{self._broker}:{who.subscriber}:{key}"}
        query = "wait=visible" if wait else ""
        answered = await self._client.publish(name, query, body, headers, self._settings.timeout_s)
        status = str(answered.status)
        self._figures.published[status] = self._figures.published.get(status, 0) + 1
        return answered


def with_user(body: bytes, field: str, user: str) -> bytes:
    """The same records, one after the other or in an array, each with the user's name in the field."""
    try:
        whole = orjson.loads(body)
        records = whole if isinstance(whole, list) else [whole]
    except orjson.JSONDecodeError:
        records = [_line(line, place) for place, line in enumerate(body.splitlines(), 1) if line.strip()]
    for place, one in enumerate(records, 1):
        if not isinstance(one, dict):
            raise InputError(f"record {place}: expected a JSON object")
        one[field] = user
    return b"\n".join(orjson.dumps(one) for one in records)


def _line(line: bytes, place: int) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise InputError(f"record {place}: {error.msg}", hint="records are published here as JSON") from None
