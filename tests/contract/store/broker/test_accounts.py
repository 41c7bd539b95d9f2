"""Applications and their subscribers, with what belongs to an account: webhooks, tokens, and the limits of it all."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.support.broker_store_contents import all_frontends, contents, default, new_backend, people, subscribe
from tocsin.store.broker.checks import LISTED, PERSON_LIMIT, TEXT_LIMIT, URL_LIMIT
from tocsin.store.broker.interface import BrokerStore
from tocsin.store.broker.rows import EVERYTHING, ApplicationRights, ApplicationRow, WebhookRow
from tocsin.wire.errors import ConflictError, InputError, LimitError, NotFoundError


async def test_applications_are_kept_with_all_they_may(store: BrokerStore) -> None:
    made = await store.add_application(
        "traffic", ApplicationRights(["v.a", "v.b"], [], {"subscribers": 3}), digest="d1", created_us=8
    )
    assert made == ApplicationRow(
        made.id, "traffic", "d1", ApplicationRights(("v.a", "v.b"), (), {"subscribers": 3}), 8
    )
    with pytest.raises(ConflictError, match="traffic"):
        await store.add_application("traffic", digest=None, created_us=8)
    with pytest.raises(ConflictError, match="token"):
        await store.add_application("Traffic", digest="d1", created_us=8)
    changed = await store.change_application(made.id, ApplicationRights(feeds=["v.f"]))
    assert changed == replace(made, allowed=ApplicationRights(feeds=("v.f",)))
    renewed = await store.renew_application_token(made.id, "d2")
    assert [each.name for each in await store.applications()] == ["default", "traffic"]
    assert (await store.applications())[1] == renewed == replace(changed, digest="d2")
    assert (await store.application(made.id), await store.application(99)) == (renewed, None)
    for missing in (
        store.change_application(99, EVERYTHING),
        store.renew_application_token(99, "d3"),
        store.close_application(99),
    ):
        with pytest.raises(NotFoundError):
            await missing


async def test_an_application_is_removed_in_steps_and_takes_nobody_meanwhile(store: BrokerStore) -> None:
    application = await store.add_application("traffic", digest=None, created_us=8)
    ann = await store.add_subscriber(application.id, "ann", password="#", created_us=1)
    group = await store.add_group(application.id, "crew", created_us=1)
    await subscribe(store, ann.id, 1)
    await store.subscribe_group(group.id, 1, created_us=1)
    with pytest.raises(ConflictError, match="in use"):
        await store.remove_application(application.id)
    await store.close_application(application.id)
    with pytest.raises(ConflictError, match="in use"):
        await store.remove_application(application.id)
    for late in (
        store.add_subscriber(application.id, "bob", password="#", created_us=1),
        store.add_group(application.id, "late", created_us=1),
    ):
        with pytest.raises(NotFoundError, match="being removed"):
            await late
    assert [each.closed for each in await store.applications()] == [False, True]
    await store.remove_subscribers([ann.id])
    await store.remove_application(application.id)
    await store.remove_application(application.id)
    assert [each.name for each in await store.applications()] == ["default"]
    assert await store.release_backends([1]) == [1]


async def test_users_are_unique_per_application_and_character_by_character(store: BrokerStore) -> None:
    application = await default(store)
    other = (await store.add_application("b", digest=None, created_us=1)).id
    names = ["Ann", "ann", "ann ", "\u00e4nn", "a\u0308nn", "\U0001f600"]
    for name in names:
        await store.add_subscriber(application, name, password="#", created_us=1)
    await store.add_subscriber(other, "ann", password="#", created_us=1)
    for name in names:
        with pytest.raises(ConflictError):
            await store.add_subscriber(application, name, password="#", created_us=1)
    assert [each.user for each in await store.subscribers(application)] == sorted(names)
    assert [each.user for each in await store.subscribers(application, after="ann", limit=2)] == ["ann ", "a\u0308nn"]
    asked = [*names, "nobody", "a\0b"]
    assert [each.user for each in await store.find_subscribers(application, asked)] == sorted(names)
    found = await store.subscriber(other, "ann")
    assert found is not None
    assert (await store.subscriber_by_id(found.id), found.application) == (found, other)
    assert await store.subscriber(other, "Ann") is None
    assert await store.subscriber_by_id(999) is None


async def test_an_application_has_at_most_so_many_subscribers(store: BrokerStore) -> None:
    application = await default(store)
    for user in ("ann", "bob"):
        await store.add_subscriber(application, user, password="#", created_us=1, at_most=2)
    with pytest.raises(LimitError) as told:
        await store.add_subscriber(application, "cid", password="#", created_us=1, at_most=2)
    assert told.value.status == 429
    ann = await store.subscriber(application, "ann")
    assert ann is not None
    await store.remove_subscribers([ann.id])
    await store.add_subscriber(application, "cid", password="#", created_us=1, at_most=2)


async def test_another_hash_may_end_older_tokens_and_is_never_shown(store: BrokerStore) -> None:
    (ann,) = await people(store, "ann")
    await store.change_subscriber(ann, password="second", tokens_from_us=50)
    await store.change_subscriber(ann, password="third")
    found = await store.subscriber_by_id(ann)
    assert found is not None
    assert (found.password, found.tokens_from_us) == ("third", 50)
    assert "third" not in repr(found)
    with pytest.raises(NotFoundError):
        await store.change_subscriber(99, password="none")


async def test_a_subscriber_that_is_removed_leaves_nothing(store: BrokerStore) -> None:
    ann, bob = await people(store, "ann", "bob")
    mine, (his,) = await subscribe(store, ann, 1, 2), await subscribe(store, bob, 1)
    group = await store.add_group(await default(store), "crew", created_us=1)
    await store.add_members(group.id, [ann, bob], created_us=1)
    await store.put_webhook(ann, "http://there", "s", created_us=1)
    assert await store.remove_subscribers([ann, 99]) == mine
    assert await all_frontends(store) == [his]
    assert [each.id for each in await store.members(group.id)] == [bob]
    assert (await store.webhooks(), await store.subscriber_by_id(ann)) == ([], None)
    assert (await store.applications())[0].subscribers == 1


async def test_a_subscriber_has_one_webhook(store: BrokerStore) -> None:
    ann, bob = await people(store, "ann", "bob")
    await store.put_webhook(ann, "http://first", "s1", created_us=1)
    second = await store.put_webhook(ann, "http://second", "s2", created_us=2)
    assert await store.webhook(ann) == second == WebhookRow(ann, await default(store), "http://second", 2, "s2")
    assert await store.webhooks() == [second]
    assert "s2" not in repr(second)
    assert await store.webhook(bob) is None
    assert await store.remove_webhook(ann, secret="s1") is False, "another is in its place"
    assert (await store.remove_webhook(ann, secret="s2"), await store.remove_webhook(ann)) == (True, False)
    await store.put_webhook(ann, "http://third", "s3", created_us=3)
    assert (await store.remove_webhook(ann), await store.remove_webhook(ann)) == (True, False)
    with pytest.raises(NotFoundError):
        await store.put_webhook(99, "http://x", "s", created_us=1)


async def test_the_first_fact_stays_for_all_who_ask(store: BrokerStore) -> None:
    assert await asyncio.gather(*(store.first_fact("key", value) for value in "abc")) == ["a", "a", "a"]
    await store.set_fact("key", "d")
    assert (await store.fact("key"), await store.first_fact("key", "e")) == ("d", "d")


async def test_ended_tokens_are_forgotten_when_they_would_have_ended_by_themselves(store: BrokerStore) -> None:
    await store.revoke("one", expires_us=10)
    await store.revoke("one", expires_us=99)
    await store.revoke("two", expires_us=20)
    assert await store.revoked_tokens() == {"one": 10, "two": 20}
    assert await store.forget_revoked(expired_before_us=20) == 1
    assert await store.revoked_tokens() == {"two": 20}


async def test_what_not_every_backend_can_keep_is_refused(store: BrokerStore) -> None:
    (ann,) = await people(store, "ann")
    application = await default(store)
    long = "x" * (PERSON_LIMIT + 1)
    before = await contents(store)

    def application_of(**fields: Any) -> Any:
        return store.add_application("b", ApplicationRights(**fields), digest=None, created_us=1)

    for wrong in (
        store.add_subscriber(application, "", password="#", created_us=1),
        store.add_subscriber(application, "a\0b", password="#", created_us=1),
        store.add_subscriber(application, "\ud800", password="#", created_us=1),
        store.add_subscriber(application, "b", password="x" * (TEXT_LIMIT + 1), created_us=1),
        store.add_group(application, long, created_us=1),
        store.add_application(long, digest=None, created_us=1),
        application_of(channels=["v.c"] * (LISTED + 1)),
        application_of(feeds=["\0"]),
        application_of(limits={"subscribers": -1}),
        application_of(limits={str(n): n for n in range(101)}),
        store.put_webhook(ann, "x" * (URL_LIMIT + 1), "s", created_us=1),
        store.set_fact("key", "\0"),
        store.subscribe([], backends=[replace(new_backend(1), channel="\0")], created_us=1),
        store.subscribe([], backends=[new_backend(0)], created_us=1),
    ):
        with pytest.raises(InputError):
            await wrong
    assert await contents(store) == before
