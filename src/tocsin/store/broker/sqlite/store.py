"""The broker's store in one SQLite file (see store/sqlite/file.py): writes share commits, readers never wait."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final, Unpack

from tocsin.rules.model.cursors import Cursor, Position
from tocsin.store.broker import checks as check
from tocsin.store.broker import rows
from tocsin.store.broker.rows import PAGE
from tocsin.store.broker.sqlite import accounts as people
from tocsin.store.broker.sqlite import groups
from tocsin.store.broker.sqlite import subscriptions as holds
from tocsin.store.broker.sqlite.upgrades import BROKER_UPGRADES
from tocsin.store.sqlite.file import OpeningMode, StoreLayout
from tocsin.store.sqlite.group_commit import GroupCommits
from tocsin.store.sqlite.ownership import Ownership
from tocsin.wire.subscriber import DEFAULT_APPLICATION, Mode

CHUNK: Final = 10_000


class SqliteBrokerStore(GroupCommits):
    """Implements BrokerStore. One process at a time has the file."""

    # "TCSB" in ASCII
    layout = StoreLayout(0x54435342, BROKER_UPGRADES, readers=2, cache_bytes=16 << 20)

    def __init__(self, path: Path, **opening: Unpack[OpeningMode]) -> None:
        super().__init__(path, **opening)
        self._ownership = Ownership(path)

    async def open(self) -> None:
        await asyncio.to_thread(self._ownership.take)
        try:
            await super().open()
        except BaseException:
            self._ownership.release()
            raise

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            self._ownership.release()

    def first_rows(self, writer: sqlite3.Connection, now: datetime) -> None:
        created_us = int(now.timestamp() * 1e6)
        people.add_application(writer, DEFAULT_APPLICATION, rows.EVERYTHING, digest=None, created_us=created_us)

    # --- facts, and tokens that were revoked before they expired

    async def fact(self, name: str) -> str | None:
        return await self.read(lambda reader: people.fact(reader, name))

    async def set_fact(self, name: str, value: str) -> None:
        check.kept("fact", name, value)
        await self.write(lambda writer: people.set_fact(writer, name, value))

    async def first_fact(self, name: str, value: str) -> str:
        check.kept("fact", name, value)
        return await self.write(lambda writer: people.first_fact(writer, name, value))

    async def revoke(self, token: str, *, expires_us: int) -> None:
        check.person("token's id", token)
        await self.write(lambda writer: people.revoke(writer, token, expires_us))

    async def revoked(self) -> dict[str, int]:
        return await self.read(people.revoked_tokens)

    async def forget_revoked(self, *, expired_before_us: int) -> int:
        return await self.write(lambda writer: people.forget_revoked(writer, expired_before_us))

    # --- the cluster

    async def link(self) -> rows.LinkRow:
        return await self.read(holds.link)

    async def registered(self, *, epoch: int, position: Position, secret: str | None = None) -> None:
        check.position(position)
        check.kept("secret", secret or "")
        await self.write(lambda writer: holds.save_registration(writer, epoch, position, secret))

    async def record_announcement(self, position: Position, heads: Mapping[int, Cursor]) -> None:
        check.position(position)
        for head in heads.values():
            check.cursor(head)
        await self.write(lambda writer: holds.record_announcement(writer, position, heads))

    async def backends(self) -> AsyncIterator[list[rows.BackendRow]]:
        after = 0
        while chunk := await self.read(partial(holds.backends_after, after=after, limit=CHUNK)):
            yield chunk
            after = chunk[-1].interest

    async def backend(self, channel: str, parameters: str) -> rows.BackendRow | None:
        return await self.read(lambda reader: holds.backend(reader, channel, parameters))

    async def rebind(self, rebound: Sequence[rows.ReboundBackend]) -> None:
        for backend in rebound:
            check.rebound(backend)
        await self.write(lambda writer: holds.rebind(writer, rebound))

    async def release_backends(self, interests: Sequence[int]) -> list[int]:
        return await self.write(lambda writer: holds.release_backends(writer, interests))

    async def drop_backends(self, interests: Sequence[int]) -> list[rows.FrontendRow]:
        return await self.write(lambda writer: holds.drop_backends(writer, interests))

    # --- subscriptions

    async def subscribe(
        self,
        wanted: Sequence[rows.FrontendRequest],
        *,
        backends: Sequence[rows.NewBackendRow] = (),
        created_us: int,
        at_most: int | None = None,
    ) -> list[rows.FrontendOutcome]:
        for request in wanted:
            check.wanted(request)
        for backend in backends:
            check.backend(backend)
        return await self.write(lambda writer: holds.subscribe(writer, wanted, backends, created_us, at_most))

    async def unsubscribe(self, ids: Sequence[int]) -> list[rows.FrontendRow]:
        return await self.write(lambda writer: holds.unsubscribe(writer, ids))

    async def frontend(self, subscriber: int, public_id: str) -> rows.FrontendRow | None:
        return await self.read(lambda reader: holds.frontend(reader, subscriber, public_id))

    async def frontends_of(self, subscriber: int, *, after: int = 0, limit: int = PAGE) -> list[rows.FrontendRow]:
        return await self.read(lambda reader: holds.frontends_of(reader, subscriber, after, limit))

    async def frontends(self) -> AsyncIterator[list[rows.FrontendRow]]:
        after = 0
        while chunk := await self.read(partial(holds.frontends_after, after=after, limit=CHUNK)):
            yield chunk
            after = chunk[-1].id

    async def acknowledge(self, markers: Mapping[int, Cursor]) -> None:
        for marker in markers.values():
            check.cursor(marker)
        await self.mark(markers)

    # --- applications

    async def add_application(
        self, name: str, allowed: rows.ApplicationRights = rows.EVERYTHING, *, digest: str | None, created_us: int
    ) -> rows.ApplicationRow:
        check.person("name of an application", name)
        check.allowed(allowed)
        check.kept("digest", digest or "")
        return await self.write(lambda writer: people.add_application(writer, name, allowed, digest, created_us))

    async def change_application(self, application: int, allowed: rows.ApplicationRights) -> rows.ApplicationRow:
        check.allowed(allowed)
        return await self.write(lambda writer: people.change_application(writer, application, allowed))

    async def end_outside(
        self, application: int, channels: Sequence[str], *, after: int = 0, limit: int = PAGE
    ) -> list[rows.FrontendRow]:
        return await self.write(lambda writer: holds.end_outside(writer, application, channels, after, limit))

    async def renew_application_token(self, application: int, digest: str) -> rows.ApplicationRow:
        check.kept("digest", digest)
        return await self.write(lambda writer: people.renew_application_token(writer, application, digest))

    async def close_application(self, application: int) -> None:
        await self.write(lambda writer: people.close_application(writer, application))

    async def remove_application(self, application: int) -> None:
        await self.write(lambda writer: people.remove_application(writer, application))

    async def application(self, application: int) -> rows.ApplicationRow | None:
        return await self.read(lambda reader: people.find_application(reader, application))

    async def applications(self) -> list[rows.ApplicationRow]:
        return await self.read(people.applications)

    # --- subscribers

    async def add_subscriber(
        self, application: int, user: str, *, password: str, created_us: int, at_most: int | None = None
    ) -> rows.SubscriberRow:
        check.person("user's name", user)
        check.kept("hash", password)
        return await self.write(
            lambda writer: people.add_subscriber(
                writer, application, user, password=password, created_us=created_us, at_most=at_most
            )
        )

    async def change_subscriber(self, subscriber: int, *, password: str, tokens_from_us: int | None = None) -> None:
        check.kept("hash", password)
        await self.write(lambda writer: people.change_subscriber(writer, subscriber, password, tokens_from_us))

    async def remove_subscribers(self, subscribers: Sequence[int]) -> list[rows.FrontendRow]:
        return await self.write(lambda writer: people.remove_subscribers(writer, subscribers))

    async def subscriber(self, application: int, user: str) -> rows.SubscriberRow | None:
        return await self.read(lambda reader: people.subscriber(reader, application, user))

    async def subscriber_by_id(self, subscriber: int) -> rows.SubscriberRow | None:
        return await self.read(lambda reader: people.subscriber_by_id(reader, subscriber))

    async def find_subscribers(self, application: int, users: Sequence[str]) -> list[rows.SubscriberRow]:
        return await self.read(lambda reader: people.find_subscribers(reader, application, users))

    async def subscribers(self, application: int, *, after: str = "", limit: int = PAGE) -> list[rows.SubscriberRow]:
        return await self.read(lambda reader: people.subscribers(reader, application, after, limit))

    # --- groups

    async def add_group(
        self,
        application: int,
        name: str,
        members: Sequence[int] = (),
        *,
        created_us: int,
        at_most: int | None = None,
        members_at_most: int | None = None,
    ) -> rows.GroupRow:
        check.person("name of a group", name)

        def add(writer: sqlite3.Connection) -> rows.GroupRow:
            group = groups.add_group(writer, application, name, created_us, at_most)
            groups.add_members(writer, group.id, members, created_us, members_at_most)
            return group

        return await self.write(add)

    async def remove_group(self, group: int) -> list[rows.FrontendRow]:
        return await self.write(lambda writer: groups.remove_group(writer, group))

    async def group(self, application: int, name: str) -> rows.GroupRow | None:
        return await self.read(lambda reader: groups.group(reader, application, name))

    async def groups(self, application: int, *, after: str = "", limit: int = PAGE) -> list[rows.GroupRow]:
        return await self.read(lambda reader: groups.groups(reader, application, after, limit))

    async def groups_of(self, subscriber: int) -> list[rows.GroupRow]:
        return await self.read(lambda reader: groups.groups_of(reader, subscriber))

    async def add_members(
        self, group: int, subscribers: Sequence[int], *, created_us: int, at_most: int | None = None
    ) -> list[rows.FrontendRow]:
        return await self.write(lambda writer: groups.add_members(writer, group, subscribers, created_us, at_most))

    async def remove_members(self, group: int, subscribers: Sequence[int]) -> list[rows.FrontendRow]:
        return await self.write(lambda writer: groups.remove_members(writer, group, subscribers))

    async def members(self, group: int, *, after: str = "", limit: int = PAGE) -> list[rows.SubscriberRow]:
        return await self.read(lambda reader: groups.members(reader, group, after, limit))

    async def subscribe_group(
        self,
        group: int,
        interest: int,
        *,
        mode: Mode = "inline",
        backends: Sequence[rows.NewBackendRow] = (),
        created_us: int,
        at_most: int | None = None,
    ) -> rows.GroupSubscriptionOutcome:
        check.mode(mode)
        for backend in backends:
            check.backend(backend)
        return await self.write(
            lambda writer: groups.subscribe_group(
                writer, group, interest, mode=mode, backends=backends, created_us=created_us, at_most=at_most
            )
        )

    async def unsubscribe_group(self, group: int, public_id: str) -> list[rows.FrontendRow] | None:
        return await self.write(lambda writer: groups.unsubscribe_group(writer, group, public_id))

    async def group_subscriptions(self, group: int) -> list[rows.GroupSubscriptionRow]:
        return await self.read(lambda reader: groups.group_subscriptions(reader, group))

    # --- webhooks

    async def put_webhook(self, subscriber: int, url: str, secret: str, *, created_us: int) -> rows.WebhookRow:
        check.url(url)
        check.kept("secret", secret)
        return await self.write(lambda writer: people.put_webhook(writer, subscriber, url, secret, created_us))

    async def remove_webhook(self, subscriber: int, *, secret: str | None = None) -> bool:
        return await self.write(lambda writer: people.remove_webhook(writer, subscriber, secret))

    async def webhook(self, subscriber: int) -> rows.WebhookRow | None:
        return await self.read(lambda reader: people.webhook(reader, subscriber))

    async def webhooks(self) -> list[rows.WebhookRow]:
        return await self.read(people.webhooks)
