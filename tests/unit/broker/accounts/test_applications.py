"""Applications, what each may, and the groups of its subscribers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.local_accounts import OPEN, SECRET, FakeAccountsClock, manager, opened, session
from tocsin.broker.accounts.accounts import OPERATOR, ManagerIdentity, Rights
from tocsin.broker.accounts.local import LocalAccounts
from tocsin.broker.accounts.policy import AT_ONCE
from tocsin.rules.model.cursors import START
from tocsin.store.broker.rows import ApplicationRights, FrontendRequest, NewBackendRow
from tocsin.store.broker.sqlite.store import SqliteBrokerStore
from tocsin.wire.errors import ConflictError, ForbiddenError, InputError, LimitError, NotFoundError, UnauthorizedError
from tocsin.wire.subscriber import Credentials


async def test_an_application_gets_a_token_once_and_may_use_what_was_said(
    accounts: LocalAccounts, store: SqliteBrokerStore, clock: FakeAccountsClock
) -> None:
    made = await accounts.create_application(OPERATOR, "traffic", ApplicationRights(["v.jams"], [], {"subscribers": 1}))
    assert made.token.startswith("tocsin_app_")
    assert made.token not in repr(made)
    assert await accounts.who(made.token) == ManagerIdentity(made.application.id, "traffic")
    rights = accounts.rights(made.application.id)
    assert (rights.may_subscribe("v.jams"), rights.may_subscribe("v.other"), rights.may_publish("v.f")) == (
        True,
        False,
        False,
    )
    assert rights.limits == {"subscribers": 1}
    again = await opened(store, clock)
    assert await again.who(made.token) == ManagerIdentity(made.application.id, "traffic")
    assert again.rights(made.application.id) == rights
    await again.close()


async def test_changed_rights_count_at_once(accounts: LocalAccounts) -> None:
    own = await manager(accounts, channels=["v.a"])
    assert own.application is not None
    await accounts.change_application(OPERATOR, "traffic", ApplicationRights(feeds=["v.f"], limits={"groups": 0}))
    assert accounts.rights(own.application) == Rights(None, frozenset({"v.f"}), {"groups": 0})
    with pytest.raises(LimitError) as told:
        await accounts.create_group(own, "crew")
    assert told.value.status == 429
    assert accounts.rights(999) == Rights(frozenset(), frozenset())


async def test_what_is_held_of_channels_that_were_taken_away_ends_also_after_a_crash(
    store: SqliteBrokerStore, clock: FakeAccountsClock
) -> None:
    accounts = await opened(store, clock)
    own = await manager(accounts, channels=["v.a", "v.b"])
    ann = await session(accounts, "ann", "traffic")
    backends = [NewBackendRow(each, f"v.{'ab'[each % 2]}", f"[{each}]", f"s{each}", START) for each in range(1, 601)]
    await store.subscribe(
        [FrontendRequest(ann.subscriber, backend.interest) for backend in backends], backends=backends, created_us=1
    )
    assert own.application is not None
    assert [page async for page in accounts.end_outside(own.application)] == []
    await accounts.change_application(OPERATOR, "traffic", ApplicationRights(["v.b"]))
    steps = accounts.end_outside(own.application)
    assert len(await anext(steps)) == 200
    await accounts.close()
    # Killed here, and started again.
    again = await opened(store, clock)
    held = await store.frontends_of(ann.subscriber)
    assert {backends[holding.interest - 1].channel for holding in held} == {"v.b"}
    assert len(held) == 300
    await again.close()


async def test_a_renewed_token_ends_the_old_one(accounts: LocalAccounts) -> None:
    first = (await accounts.create_application(OPERATOR, "traffic")).token
    own = await accounts.who(first)
    second = (await accounts.renew_application_token(own, "traffic")).token
    with pytest.raises(UnauthorizedError):
        await accounts.who(first)
    assert await accounts.who(second) == own
    # The default application has none until the operator asks for it.
    default = await accounts.who((await accounts.renew_application_token(OPERATOR, "default")).token)
    assert isinstance(default, ManagerIdentity)
    assert default.application_name == "default"


@pytest.mark.parametrize("limits", [{"unknown": 1}, {"subscribers": -1}, {"subscribers": True}, {"members": 1.5}])
async def test_limits_that_make_no_sense_are_refused_by_name(accounts: LocalAccounts, limits: Any) -> None:
    with pytest.raises(InputError, match=rf"limits\.{next(iter(limits))}"):
        await accounts.create_application(OPERATOR, "traffic", ApplicationRights(limits=limits))
    assert [each.name for each in await accounts.applications(OPERATOR)] == ["default"]


async def test_an_application_has_at_most_so_many_subscribers(accounts: LocalAccounts) -> None:
    own = await manager(accounts, limits={"subscribers": 1})
    await accounts.register(own, Credentials("ann", SECRET))
    with pytest.raises(LimitError, match="as many subscribers") as told:
        await accounts.register(own, Credentials("bob", SECRET))
    assert told.value.status == 429
    assert [each.subscribers for each in await accounts.applications(OPERATOR)] == [0, 1]


async def test_a_removed_application_takes_all_it_has_along(store: SqliteBrokerStore, clock: FakeAccountsClock) -> None:
    accounts = await opened(store, clock, replace(OPEN, removed_at_once=2))
    made = await accounts.create_application(OPERATOR, "traffic")
    own = await accounts.who(made.token)
    users = [await session(accounts, f"user{n}", "traffic") for n in range(5)]
    token = (await accounts.renew(users[0])).token
    other = await session(accounts)
    backends = [NewBackendRow(1, "v.c", "[]", "s", START)]
    await store.subscribe(
        [FrontendRequest(users[4].subscriber, 1), FrontendRequest(other.subscriber, 1)], backends=backends, created_us=1
    )
    steps = [step async for step in accounts.remove_application(OPERATOR, "traffic")]
    assert [len(step.subscribers) for step in steps] == [2, 2, 1]
    assert [each.subscriber for step in steps for each in step.frontends] == [users[4].subscriber]
    for refused in (
        accounts.who(made.token),
        accounts.who(token),
        accounts.login(Credentials("user0", SECRET, "traffic")),
    ):
        with pytest.raises(UnauthorizedError):
            await refused
    with pytest.raises(ForbiddenError):
        await accounts.subscribers(own)
    assert [each.name for each in await accounts.applications(OPERATOR)] == ["default"]
    assert [each.user for each in await accounts.subscribers(OPERATOR)] == ["ann"]
    await accounts.create_application(OPERATOR, "traffic")
    await accounts.close()


async def test_a_removal_that_was_interrupted_is_brought_to_its_end(
    store: SqliteBrokerStore, clock: FakeAccountsClock
) -> None:
    accounts = await opened(store, clock, replace(OPEN, removed_at_once=1))
    await manager(accounts)
    users = [await session(accounts, user, "traffic") for user in ("ann", "bob")]
    removing = accounts.remove_application(OPERATOR, "traffic")
    async for _ in removing:
        break
    for refused in (accounts.renew(users[1]), accounts.login(Credentials("bob", SECRET, "traffic"))):
        with pytest.raises(UnauthorizedError):
            await refused
    with pytest.raises(NotFoundError, match="being removed"):
        await accounts.create_group(OPERATOR, "crew", application="traffic")
    with pytest.raises(ConflictError, match="being removed"):
        await accounts.renew_application_token(OPERATOR, "traffic")
    await accounts.close()
    again = await opened(store, clock)
    assert [each.name for each in await store.applications()] == ["default"]
    await again.close()


async def test_the_default_application_stays(accounts: LocalAccounts) -> None:
    with pytest.raises(ConflictError, match="stays"):
        async for _ in accounts.remove_application(OPERATOR, "default"):
            pass
    with pytest.raises(NotFoundError):
        async for _ in accounts.remove_application(OPERATOR, "nowhere"):
            pass


async def test_members_share_what_their_group_holds(accounts: LocalAccounts, store: SqliteBrokerStore) -> None:
    own = await manager(accounts)
    ann, bob = [await session(accounts, user, "traffic") for user in ("ann", "bob")]
    crew = (await accounts.create_group(own, "crew", ["ann", "ann"])).group
    backends = [NewBackendRow(1, "v.c", "[]", "s", START)]
    held = await store.subscribe_group(crew.id, 1, backends=backends, created_us=1)
    assert [each.subscriber for each in held.frontends] == [ann.subscriber]
    joined = await accounts.add_members(own, "crew", ["bob"])
    assert [each.subscriber for each in joined.made] == [bob.subscriber]
    assert await accounts.members(own, "crew") == await accounts.members(bob, "crew") == ["ann", "bob"]
    assert await accounts.group(bob, "crew") == crew
    left = await accounts.remove_members(bob, "crew", ["bob"])
    assert [each.subscriber for each in left.gone] == [bob.subscriber]
    with pytest.raises(NotFoundError):
        await accounts.group(bob, "crew")
    assert await accounts.groups(bob) == []
    gone = await accounts.remove_group(own, "crew")
    assert [each.subscriber for each in gone.gone] == [ann.subscriber]
    assert await accounts.groups(own) == []


async def test_a_group_is_made_with_all_its_members_or_not_at_all(accounts: LocalAccounts) -> None:
    await session(accounts, "ann")
    with pytest.raises(NotFoundError, match="nobody"):
        await accounts.create_group(OPERATOR, "crew", ["ann", "nobody"])
    with pytest.raises(LimitError, match="too many at once"):
        await accounts.create_group(OPERATOR, "crew", [f"user{n}" for n in range(AT_ONCE + 1)])
    assert await accounts.groups(OPERATOR) == []
    await accounts.create_group(OPERATOR, "crew", ["ann"])
    with pytest.raises(ConflictError):
        await accounts.create_group(OPERATOR, "crew")
    # Who is no member is passed over.
    assert (await accounts.remove_members(OPERATOR, "crew", ["nobody"])).gone == []
    assert await accounts.members(OPERATOR, "crew") == ["ann"]


async def test_groups_are_listed_in_pages(accounts: LocalAccounts) -> None:
    mine = await session(accounts)
    for name in ("b", "a", "c"):
        await accounts.create_group(OPERATOR, name, ["ann"])
    await accounts.create_group(OPERATOR, "others")
    for by, names in ((OPERATOR, ["b", "c"]), (mine, ["b", "c"])):
        assert [each.name for each in await accounts.groups(by, after="a", limit=2)] == names
    assert [each.name for each in await accounts.groups(mine)] == ["a", "b", "c"]


async def test_members_change_nothing_but_their_own_membership(accounts: LocalAccounts) -> None:
    mine = await session(accounts)
    await session(accounts, "bob")
    await accounts.create_group(OPERATOR, "crew", ["ann", "bob"])
    for refused in (
        accounts.create_group(mine, "own", ["ann"]),
        accounts.add_members(mine, "crew", ["ann"]),
        accounts.remove_members(mine, "crew", ["bob"]),
        accounts.remove_members(mine, "crew", ["ann", "bob"]),
        accounts.remove_group(mine, "crew"),
    ):
        with pytest.raises(ForbiddenError):
            await refused
    assert await accounts.members(OPERATOR, "crew") == ["ann", "bob"]
