"""The broker's store in one SQLite file (see store/sqlite/file.py): writes share commits, readers never wait.

Acknowledgements are the most frequent writes, and a sync of the disk for each would be too slow; `GroupCommits`
therefore lets many writes share one commit. The SQL is in the modules beside, as functions of a connection: the caller
decides which of them share a transaction.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final, Unpack

from tocsin.clock import to_us
from tocsin.rules.model.cursors import Cursor, SubscriptionId
from tocsin.store.broker import checks as check
from tocsin.store.broker.rows import EVERYTHING, BackendRow, FrontendRow
from tocsin.store.broker.sqlite import accounts, subscriptions
from tocsin.store.broker.sqlite import groups as sqlite_groups
from tocsin.store.broker.sqlite.group_commit import GroupCommits, GroupedWrite
from tocsin.store.broker.sqlite.upgrades import BROKER_UPGRADES
from tocsin.store.sqlite.file import OpeningMode, ReadCall, StoreLayout
from tocsin.store.sqlite.ownership import Ownership
from tocsin.wire.subscriber import DEFAULT_APPLICATION

_CHUNK: Final = 10_000


class SqliteBrokerStore(GroupCommits):
    """Implements BrokerStore: each method runs a function of the modules beside. One process at a time has the file."""

    # "TCSB" in ASCII
    layout = StoreLayout(0x54435342, BROKER_UPGRADES, readers=2, cache_bytes=16 << 20)

    def __init__(self, path: Path, *, commit_writes: int = 1_000, **opening: Unpack[OpeningMode]) -> None:
        super().__init__(path, commit_writes=commit_writes, **opening)
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
        accounts.add_application(writer, DEFAULT_APPLICATION, EVERYTHING, digest=None, created_us=to_us(now))

    # --- facts, and tokens that were revoked before they expired

    fact = ReadCall(accounts.fact)
    set_fact = GroupedWrite(accounts.set_fact)
    first_fact = GroupedWrite(accounts.first_fact)
    revoke = GroupedWrite(accounts.revoke)
    revoked_tokens = ReadCall(accounts.revoked_tokens)
    forget_revoked = GroupedWrite(accounts.forget_revoked)

    # --- the cluster

    link = ReadCall(subscriptions.link)
    record_registration = GroupedWrite(subscriptions.record_registration)
    record_announcement = GroupedWrite(subscriptions.record_announcement)
    backend = ReadCall(subscriptions.backend)
    rebind = GroupedWrite(subscriptions.rebind)
    release_backends = GroupedWrite(subscriptions.release_backends)
    drop_backends = GroupedWrite(subscriptions.drop_backends)

    async def backends(self) -> AsyncIterator[list[BackendRow]]:
        after = 0
        while chunk := await self.read(partial(subscriptions.backends_after, after=after, limit=_CHUNK)):
            yield chunk
            after = chunk[-1].interest

    # --- subscriptions

    subscribe = GroupedWrite(subscriptions.subscribe)
    unsubscribe = GroupedWrite(subscriptions.unsubscribe)
    frontend = ReadCall(subscriptions.frontend)
    frontends_of = ReadCall(subscriptions.frontends_of)

    async def frontends(self) -> AsyncIterator[list[FrontendRow]]:
        after = 0
        while chunk := await self.read(partial(subscriptions.frontends_after, after=after, limit=_CHUNK)):
            yield chunk
            after = chunk[-1].id

    async def acknowledge(self, markers: Mapping[SubscriptionId, Cursor]) -> None:
        for marker in markers.values():
            check.cursor(marker)
        await self.mark(markers)

    # --- applications

    add_application = GroupedWrite(accounts.add_application)
    change_application = GroupedWrite(accounts.change_application)
    end_outside = GroupedWrite(subscriptions.end_outside)
    renew_application_token = GroupedWrite(accounts.renew_application_token)
    close_application = GroupedWrite(accounts.close_application)
    remove_application = GroupedWrite(accounts.remove_application)
    application = ReadCall(accounts.application)
    applications = ReadCall(accounts.applications)

    # --- subscribers

    add_subscriber = GroupedWrite(accounts.add_subscriber)
    change_subscriber = GroupedWrite(accounts.change_subscriber)
    remove_subscribers = GroupedWrite(accounts.remove_subscribers)
    subscriber = ReadCall(accounts.subscriber)
    subscriber_by_id = ReadCall(accounts.subscriber_by_id)
    find_subscribers = ReadCall(accounts.find_subscribers)
    subscribers = ReadCall(accounts.subscribers)

    # --- groups

    add_group = GroupedWrite(sqlite_groups.add_group)
    remove_group = GroupedWrite(sqlite_groups.remove_group)
    group = ReadCall(sqlite_groups.group)
    groups = ReadCall(sqlite_groups.groups)
    groups_of = ReadCall(sqlite_groups.groups_of)
    add_members = GroupedWrite(sqlite_groups.add_members)
    remove_members = GroupedWrite(sqlite_groups.remove_members)
    members = ReadCall(sqlite_groups.members)
    subscribe_group = GroupedWrite(sqlite_groups.subscribe_group)
    unsubscribe_group = GroupedWrite(sqlite_groups.unsubscribe_group)
    group_subscriptions = ReadCall(sqlite_groups.group_subscriptions)

    # --- webhooks

    put_webhook = GroupedWrite(accounts.put_webhook)
    remove_webhook = GroupedWrite(accounts.remove_webhook)
    webhook = ReadCall(accounts.webhook)
    webhooks = ReadCall(accounts.webhooks)
