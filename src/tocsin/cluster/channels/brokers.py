"""Brokers: whom the cluster tells of new results."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from tocsin.cluster.catalog import CatalogStore, Put, Remove
from tocsin.cluster.entries import BrokerEntry, broker_ref
from tocsin.cluster.scope import StatementScope
from tocsin.language import statements as st
from tocsin.wire.errors import InputError

URL_LIMIT: Final = 2_000

Summary = Mapping[str, Any]


class Brokers:
    def __init__(self, catalog: CatalogStore) -> None:
        self._catalog = catalog

    async def run(self, statement: st.Statement, scope: StatementScope) -> Summary | None:
        match statement:
            case st.CreateBroker():
                return await self._create(statement, scope)
            case st.DropBroker():
                return await self._drop(statement, scope)
        return None

    @asynccontextmanager
    async def leaving(self, _dataverse: str) -> AsyncIterator[None]:
        """A broker runs elsewhere: nothing is to be ended here."""
        yield

    async def _create(self, statement: st.CreateBroker, scope: StatementScope) -> Summary:
        name = statement.name.name
        entry = BrokerEntry(statement.name.dataverse or scope.dataverse, name, checked_url(statement.url))
        after = await self._catalog.apply([Put(entry, when_taken="keep" if statement.if_not_exists else "refuse")])
        return {"name": name} if after.find(entry.ref) is entry else {"name": name, "existed": True}

    async def _drop(self, statement: st.DropBroker, scope: StatementScope) -> Summary:
        name = statement.name.name
        ref = broker_ref(statement.name.dataverse or scope.dataverse, name)
        if self._catalog.catalog.find(ref) is None and statement.if_exists:
            return {"name": name, "existed": False}
        await self._catalog.apply([Remove(ref, if_exists=statement.if_exists)])
        return {"name": name}


def checked_url(text: str) -> str:
    """The address of a broker; InputError when nothing could be sent there."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or len(text) > URL_LIMIT or any(letter.isspace() or not letter.isprintable() for letter in text):
        shown = text if len(text) <= 80 else f"{text[:80]}…"
        raise InputError(
            f"expected a broker's address, got {shown!r}", hint='such as "http://broker.example:8989/announcements"'
        )
    if parts.username is not None or parts.password is not None:
        raise InputError("a broker's address carries no password: everybody can read it in Metadata.Broker")
    return text
