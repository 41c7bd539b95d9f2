"""Brokers: whom the cluster tells of new results.

The catalog says which there are and where; the channel store keeps their secrets and how far they were told. A broker
is registered there first, so that one that the catalog knows can be told; what a crash in between leaves goes at start.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from tocsin import faults
from tocsin.cluster.catalog.catalog import CatalogStore, Put, Remove
from tocsin.cluster.catalog.entries import BrokerEntry, broker_ref
from tocsin.cluster.channels.announcements.announcer import Announcer, new_secret
from tocsin.cluster.channels.announcements.fence import BrokerFence
from tocsin.cluster.statements.statement_scope import StatementScope
from tocsin.language.syntax import statements as st
from tocsin.rules.model.cursors import Position
from tocsin.serving.tokens import Token
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import BrokerClaim, BrokerName, Registration
from tocsin.wire.addresses import carries_password, http_address
from tocsin.wire.errors import ConflictError, ForbiddenError, InputError

URL_LIMIT: Final = 2_000
_SHOWN: Final = 3  # channels of a broker that cannot be dropped

Summary = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """`made`: the catalog did not know it before. `secret`: where it is a new one; nobody is told it twice.
    `generation`: where one was claimed."""

    broker: BrokerName
    url: str | None
    position: Position
    generation: Position | None
    made: bool
    secret: str | None = field(default=None, repr=False)


class Brokers:
    def __init__(self, catalog: CatalogStore, store: ChannelStore, announcer: Announcer) -> None:
        self._catalog = catalog
        self._store = store
        self._announcer = announcer
        self.fence = BrokerFence(store)

    # ------------------------------------------------------------ statements

    async def run(self, statement: st.Statement, scope: StatementScope) -> Summary | None:
        match statement:
            case st.CreateBroker():
                return await self._create(statement, scope)
            case st.DropBroker():
                return await self._drop(statement, scope)
        return None

    @asynccontextmanager
    async def leaving(self, _dataverse: str) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await asyncio.shield(self._announcer.settle())

    async def _create(self, statement: st.CreateBroker, scope: StatementScope) -> Summary:
        name = statement.name.name
        entry = BrokerEntry(statement.name.dataverse or scope.dataverse, name, checked_url(statement.url))
        assert entry.url is not None
        self._announcer.guard.check(entry.url, "the broker's address")
        broker = BrokerName(entry.dataverse, name)
        put = Put(entry, when_taken="keep" if statement.if_not_exists else "refuse")
        try:
            with self._announcer.expecting(broker):
                await self._store.register(broker, new_secret(), owner=None)
                faults.reach("broker.registered")
                after = await self._catalog.apply([put])
        finally:
            await asyncio.shield(self._announcer.settle())
        return {"name": name} if after.find(entry.ref) is entry else {"name": name, "existed": True}

    async def _drop(self, statement: st.DropBroker, scope: StatementScope) -> Summary:
        name = statement.name.name
        ref = broker_ref(statement.name.dataverse or scope.dataverse, name)
        if self._catalog.catalog.find(ref) is None and statement.if_exists:
            return {"name": name, "existed": False}
        if channels := await self._channels_of(BrokerName(ref.dataverse, name)):
            shown = channels[:_SHOWN] + (["others"] if len(channels) > _SHOWN else [])
            raise ConflictError(
                f"the {ref} cannot be dropped: it has subscriptions to {_listed(shown)}",
                hint="UNSUBSCRIBE them, or CHANGE SUBSCRIPTION to another broker",
            )
        try:
            await self._catalog.apply([Remove(ref, if_exists=statement.if_exists)])
        finally:
            await asyncio.shield(self._announcer.settle())
        return {"name": name}

    async def _channels_of(self, broker: BrokerName) -> list[str]:
        """The names of some channels that it has subscriptions to."""
        names = {one.channel_id: f"{one.dataverse}.{one.name}" for one in self._catalog.catalog.channels}
        found: list[str] = []
        channel_id = 0
        while len(found) <= _SHOWN and (
            page := await self._store.subscriptions_of(broker, after=(channel_id, ""), limit=1)
        ):
            # One that has just been dropped has subscriptions until it has ended.
            found.append(names.get(page[0].channel_id, "a channel that is going"))
            channel_id = page[0].channel_id + 1
        return found

    # ------------------------------------------------------------ brokers themselves

    async def register(
        self, dataverse: str, name: str, url: str | None, who: Token, claimant: BrokerClaim | None = None
    ) -> RegisteredBroker:
        """The broker is there, and is told at this address from now on. Raises FencedError where the claimant's name
        was taken over."""
        broker = BrokerName(dataverse, name)
        entry = BrokerEntry(dataverse, name, None if url is None else checked_url(url))
        known = self._catalog.catalog.find(entry.ref)
        secret = new_secret()
        if (before := await self._store.registration(broker)) is not None:
            _check_owner(before, who, claims=True)
        if (before is None or before.owner is None) and who.role == "broker":
            await self._check_claim(broker)
        try:
            with self._announcer.expecting(broker):
                kept = await self._store.register(broker, secret, owner=who.name)
                _check_owner(kept, who, claims=True)
                if claimant is not None:
                    kept = await self.fence.claim(broker, claimant, secret)
                faults.reach("broker.registered")
                if known != entry:
                    await self._catalog.apply([Put(entry, when_taken="replace")])
        finally:
            await asyncio.shield(self._announcer.changed(broker))
        given = secret if kept.secret == secret else None
        generation = None if claimant is None else kept.generation
        return RegisteredBroker(broker, entry.url, kept.position, generation, known is None, given)

    async def _check_claim(self, broker: BrokerName) -> None:
        """With a broker that nobody has registered so far, nobody's subscriptions are claimed."""
        if await self._store.subscriptions_of(broker, limit=1):
            raise ForbiddenError(
                f"the broker {broker.dataverse}.{broker.name} was made by a statement, and has subscriptions already",
                hint="register it with a token of the role writer, or UNSUBSCRIBE them, DROP it and CREATE it again",
            )

    async def renew_secret(self, broker: BrokerName, who: Token) -> str:
        """A new secret in the old one's place."""
        await self.registered(broker, who)
        secret = new_secret()
        await self._store.renew_secret(broker, secret)
        await self._announcer.changed(broker)
        return secret

    async def remove(self, broker: BrokerName, who: Token) -> None:
        """The broker and its subscriptions go."""
        await self.registered(broker, who)
        try:
            await self._catalog.apply([Remove(broker_ref(*broker))])
        finally:
            await asyncio.shield(self._announcer.settle())

    def known(self, dataverse: str, name: str) -> BrokerEntry:
        return self._catalog.catalog.broker(dataverse, name)

    async def registered(self, broker: BrokerName, who: Token) -> Registration:
        """The registration of a broker that is there; ForbiddenError when it is another one's."""
        self._catalog.catalog.broker(*broker)
        kept = await self._store.registration(broker)
        if kept is None:  # It has just come: whoever made it is about to register it.
            kept = await self._store.register(broker, new_secret(), owner=None)
        _check_owner(kept, who)
        return kept


def _listed(names: Sequence[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _check_owner(kept: Registration, who: Token, *, claims: bool = False) -> None:
    """A token of the role `broker` acts for the brokers that were registered with one of its name; one that was made by
    a statement, and that nobody has registered so far, may be claimed while it has no subscriptions."""
    if who.role == "broker" and kept.owner != who.name and not (claims and kept.owner is None):
        raise ForbiddenError(
            f"the broker {kept.broker.dataverse}.{kept.broker.name} was not registered with this token",
            hint="use the one that it was registered with, another of that name, or one of the role writer",
        )


def checked_url(text: str) -> str:
    """The address of a broker; InputError when nothing could be sent there."""
    parts = http_address(text)
    if parts is None or len(text) > URL_LIMIT:
        shown = text if len(text) <= 80 else f"{text[:80]}…"
        raise InputError(
            f"expected a broker's address, got {shown!r}", hint='such as "http://broker.example:8989/announcements"'
        )
    if carries_password(parts):
        raise InputError("a broker's address carries no password: everybody can read it in Metadata.Broker")
    return text
