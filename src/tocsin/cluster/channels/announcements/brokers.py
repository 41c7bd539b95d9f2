"""Manages brokers, the processes to which the cluster announces new results: their statements and their registration.

The catalog has their names and addresses; the channel store has their secrets and positions. A broker is registered in
the store before the catalog knows it, so every broker of the catalog can be notified. The next start removes what a
crash leaves in between: a broker without subscriptions, or one that a recorded intent names.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from tocsin import faults
from tocsin.cluster.catalog.catalog import CatalogStore, Put, Remove
from tocsin.cluster.catalog.entries import BrokerEntry, BrokerKind
from tocsin.cluster.catalog.refs import broker_ref, full_name
from tocsin.cluster.channels.announcements.announcer import Announcer, new_secret
from tocsin.cluster.statements.options import read_options
from tocsin.cluster.statements.outcomes import StatementSummary
from tocsin.cluster.statements.statement_scope import StatementScope
from tocsin.language.syntax import statements as st
from tocsin.rules.model.cursors import Position
from tocsin.serving.tokens import Token
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import BrokerClaim, BrokerName, Registration
from tocsin.wire.addresses import carries_password, http_address
from tocsin.wire.errors import ConflictError, FencedError, ForbiddenError, InputError

_URL_LIMIT: Final = 2_000
_SHOWN: Final = 3  # how many channels the refusal to drop a broker names


@dataclass(frozen=True, slots=True)
class _RegisteredBroker:
    """`made`: whether the catalog did not know the broker before. `secret`: set only if it is new; the cluster never
    shows it twice. `generation`: set only if the caller claimed the name."""

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

    @asynccontextmanager
    async def stop_for_drop(self, _dataverse: str) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await asyncio.shield(self._announcer.settle())

    async def create(self, statement: st.CreateBroker, scope: StatementScope) -> StatementSummary:
        name = statement.name.name
        kind = read_options(statement, scope.now, {"broker-type": _broker_kind}).get("broker-type", "general")
        entry = BrokerEntry(statement.name.dataverse or scope.dataverse, name, check_url(statement.url), kind)
        assert entry.url is not None
        self._announcer.guard.check(entry.url, "the broker's address")
        broker = BrokerName(entry.dataverse, name)
        put = Put(entry, when_taken="keep" if statement.if_not_exists else "refuse")
        try:
            with self._announcer.expect(broker):
                await self._store.register(broker, new_secret(), owner=None)
                faults.reach("broker.registered")
                after = await self._catalog.apply([put])
        finally:
            await asyncio.shield(self._announcer.settle())
        return {"name": name} if after.find(entry.ref) is entry else {"name": name, "existed": True}

    async def drop(self, statement: st.DropBroker, scope: StatementScope) -> StatementSummary:
        name = statement.name.name
        ref = broker_ref(statement.name.dataverse or scope.dataverse, name)
        if self._catalog.catalog.find(ref) is None and statement.if_exists:
            return {"name": name, "existed": False}
        if channels := await self._channels_of(BrokerName(ref.dataverse, name)):
            listed_channels = channels[:_SHOWN] + (["others"] if len(channels) > _SHOWN else [])
            raise ConflictError(
                f"the {ref} cannot be dropped: it has subscriptions to {_list(listed_channels)}",
                hint="UNSUBSCRIBE them, or CHANGE SUBSCRIPTION to another broker",
            )
        try:
            await self._catalog.apply([Remove(ref, if_exists=statement.if_exists)])
        finally:
            await asyncio.shield(self._announcer.settle())
        return {"name": name}

    async def _channels_of(self, broker: BrokerName) -> list[str]:
        """Returns the names of some channels to which the broker has subscriptions."""
        names = {entry.channel_id: full_name(entry) for entry in self._catalog.catalog.channels}
        channel_names: list[str] = []
        channel_id = 0
        while len(channel_names) <= _SHOWN and (
            page := await self._store.subscriptions_of(broker, after=(channel_id, ""), limit=1)
        ):
            # A dropped channel keeps its subscriptions until it has stopped.
            channel_names.append(names.get(page[0].channel_id, "a channel that is going"))
            channel_id = page[0].channel_id + 1
        return channel_names

    # ------------------------------------------------------------ registration

    async def register(
        self, dataverse: str, name: str, url: str | None, who: Token, claimant: BrokerClaim | None = None
    ) -> _RegisteredBroker:
        """Registers the broker; from now on the cluster notifies it at this address. Raises FencedError if another
        broker has taken over the claimant's name."""
        broker = BrokerName(dataverse, name)
        entry = BrokerEntry(dataverse, name, None if url is None else check_url(url))
        known_entry = self._catalog.catalog.find(entry.ref)
        secret = new_secret()
        if (previous := await self._store.registration(broker)) is not None:
            _check_owner(previous, who, claims=True)
        if (previous is None or previous.owner is None) and who.role == "broker":
            await self._check_claim(broker)
        try:
            with self._announcer.expect(broker):
                registration = await self._store.register(broker, secret, owner=who.name)
                _check_owner(registration, who, claims=True)
                if claimant is not None:
                    registration = await self.fence.claim(broker, claimant, secret)
                faults.reach("broker.registered")
                if known_entry != entry:
                    await self._catalog.apply([Put(entry, when_taken="replace")])
        finally:
            await asyncio.shield(self._announcer.notify_now(broker))
        shown_secret = secret if registration.secret == secret else None
        generation = None if claimant is None else registration.generation
        return _RegisteredBroker(
            broker, entry.url, registration.position, generation, known_entry is None, shown_secret
        )

    async def _check_claim(self, broker: BrokerName) -> None:
        """Refuses to claim an unregistered broker that already has subscriptions, because these belong to another
        owner."""
        if await self._store.subscriptions_of(broker, limit=1):
            raise ForbiddenError(
                f"the broker {full_name(broker)} was made by a statement, and has subscriptions already",
                hint="register it with a token of the role writer, or UNSUBSCRIBE them, DROP it and CREATE it again",
            )

    async def renew_secret(self, broker: BrokerName, who: Token) -> str:
        """Replaces the broker's secret and returns the new one."""
        await self.find_registration(broker, who)
        secret = new_secret()
        await self._store.renew_secret(broker, secret)
        await self._announcer.notify_now(broker)
        return secret

    async def remove(self, broker: BrokerName, who: Token) -> None:
        """Removes the broker and its subscriptions."""
        await self.find_registration(broker, who)
        try:
            await self._catalog.apply([Remove(broker_ref(*broker))])
        finally:
            await asyncio.shield(self._announcer.settle())

    def find(self, dataverse: str, name: str) -> BrokerEntry:
        return self._catalog.catalog.broker(dataverse, name)

    async def find_registration(self, broker: BrokerName, who: Token) -> Registration:
        """Returns the registration of an existing broker. Raises ForbiddenError if it belongs to another token."""
        self._catalog.catalog.broker(*broker)
        registration = await self._store.registration(broker)
        if registration is None:  # The broker is being created and is not registered yet.
            registration = await self._store.register(broker, new_secret(), owner=None)
        _check_owner(registration, who)
        return registration


def _list(names: Sequence[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _check_owner(kept: Registration, who: Token, *, claims: bool = False) -> None:
    """Raises ForbiddenError if a token of the role `broker` acts for a broker that was registered with a token of
    another name. With `claims`, it may also act for a broker that a statement created and nobody has registered yet."""
    if who.role == "broker" and kept.owner != who.name and not (claims and kept.owner is None):
        raise ForbiddenError(
            f"the broker {full_name(kept.broker)} was not registered with this token",
            hint="use the one that it was registered with, another of that name, or one of the role writer",
        )


def _broker_kind(value: Any) -> BrokerKind:
    """Reads the option `broker-type`. The original writes it in capitals and in small letters."""
    kinds: tuple[BrokerKind, ...] = ("general", "bad", "tocsin")
    for kind in kinds:
        if isinstance(value, str) and value.lower() == kind:
            return kind
    raise ValueError(f'must be one of {", ".join(kinds)}, got "{value}"')


def check_url(text: str) -> str:
    """Returns the address of a broker. Raises InputError if it is not a valid address."""
    parts = http_address(text)
    if parts is None or len(text) > _URL_LIMIT:
        excerpt = text if len(text) <= 80 else f"{text[:80]}…"
        raise InputError(
            f"expected a broker's address, got {excerpt!r}", hint='such as "http://broker.example:8989/announcements"'
        )
    if carries_password(parts):
        raise InputError("a broker's address carries no password: everybody can read it in Metadata.Broker")
    return text


class BrokerFence:
    def __init__(self, store: ChannelStore) -> None:
        self._store = store
        # A cache of the store's generations; only this class changes them.
        self._newest: dict[BrokerName, Position | None] = {}
        self._changes: dict[asyncio.Future[None], tuple[BrokerName, Position]] = {}

    async def claim(self, broker: BrokerName, claimant: BrokerClaim, secret: str) -> Registration:
        """See ChannelStore.claim. When this returns, changes that older generations had begun are complete."""
        registration = await self._store.claim(broker, claimant, secret)
        generation = registration.generation
        assert generation is not None, "a claim gives one"
        self._newest[broker] = generation
        older = [
            done
            for done, (name, changing_generation) in self._changes.items()
            if name == broker and changing_generation < generation
        ]
        if older:
            await asyncio.wait(older)
        return registration

    async def check(self, broker: BrokerName, generation: Position) -> None:
        """Raises FencedError if the name has a newer generation."""
        if broker not in self._newest:
            registration = await self._store.registration(broker)
            self._newest.setdefault(broker, None if registration is None else registration.generation)
        newest = self._newest[broker]
        if newest is not None and generation < newest:
            raise FencedError(
                f"another broker has taken the name {full_name(broker)} over",
                hint="stop one of the two; tocsin broker --take-over takes the name back",
            )

    @asynccontextmanager
    async def change(self, broker: BrokerName, generation: Position) -> AsyncIterator[None]:
        """Wraps a change that a broker makes at the cluster: checks the generation as above, and makes newer claims
        wait for the change."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Register the change before the check: a claim that comes in between then waits for it.
        self._changes[done] = broker, generation
        try:
            await self.check(broker, generation)
            yield
        finally:
            del self._changes[done]
            done.set_result(None)
