"""Short ways to fill a broker's store, and to all that it holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tocsin.rules.model.cursors import START, Cursor
from tocsin.store.broker.interface import BrokerStore
from tocsin.store.broker.rows import BackendRow, FrontendRequest, FrontendRow, NewBackendRow


def at(execution: int, ordinal: int = 0, epoch: int = 7) -> Cursor:
    return Cursor(epoch, execution, ordinal)


def new_backend(interest: int, since: Cursor = START) -> NewBackendRow:
    return NewBackendRow(interest, "v.c", f"[{interest}]", f"at-{interest}", since)


async def default(store: BrokerStore) -> int:
    return (await store.applications())[0].id


async def people(store: BrokerStore, *users: str) -> list[int]:
    application = await default(store)
    return [(await store.add_subscriber(application, user, password="#", created_us=1)).id for user in users]


async def subscribe(store: BrokerStore, subscriber: int, *interests: int, **fields: Any) -> list[FrontendRow]:
    wanted = [FrontendRequest(subscriber, interest, **fields) for interest in interests]
    made = await store.subscribe(wanted, backends=[new_backend(each) for each in interests], created_us=5)
    return [item.frontend for item in made]


async def all_frontends(store: BrokerStore) -> list[FrontendRow]:
    return [each async for chunk in store.frontends() for each in chunk]


async def all_backends(store: BrokerStore) -> list[BackendRow]:
    return [each async for chunk in store.backends() for each in chunk]


async def contents(store: BrokerStore) -> Any:
    applications = await store.applications()
    groups = [group for application in applications for group in await store.groups(application.id)]
    return (
        applications,
        [await store.subscribers(application.id) for application in applications],
        [(group, await store.members(group.id), await store.group_subscriptions(group.id)) for group in groups],
        await all_backends(store),
        await all_frontends(store),
        await store.webhooks(),
        await store.link(),
        await store.revoked_tokens(),
        await store.fact("key"),
    )


def ids(frontends: Sequence[FrontendRow]) -> list[int]:
    return [each.id for each in frontends]
