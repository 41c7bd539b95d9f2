"""Nobody reaches what is another's."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.local_accounts import SECRET, manager, session
from tocsin.broker.accounts.accounts import OPERATOR, Principal
from tocsin.broker.accounts.local import LocalAccounts
from tocsin.broker.accounts.policy import LIMITS, AccountPolicy
from tocsin.store.broker.rows import EVERYTHING
from tocsin.store.broker.sqlite.store import SqliteBrokerStore
from tocsin.wire.errors import ForbiddenError, NotFoundError


def everything(
    accounts: LocalAccounts, by: Principal, application: str | None, user: str, group: str
) -> dict[str, Any]:
    """Every call that could reach somebody else's, as coroutines that were not begun."""
    return {
        "subscribers": lambda: accounts.subscribers(by, application),
        "subscriber": lambda: accounts.subscriber(by, user, application),
        "set_password": lambda: accounts.set_password(by, user, "another secret", application, old=SECRET),
        "remove_subscriber": lambda: accounts.remove_subscriber(by, user, application),
        "create_group": lambda: accounts.create_group(by, "new", [], application),
        "add_members": lambda: accounts.add_members(by, group, [user], application),
        "remove_members": lambda: accounts.remove_members(by, group, [user], application),
        "remove_group": lambda: accounts.remove_group(by, group, application),
        "groups": lambda: accounts.groups(by, application),
        "group": lambda: accounts.group(by, group, application),
        "members": lambda: accounts.members(by, group, application),
        "application": lambda: accounts.application(by, application or "traffic"),
        "renew_application_token": lambda: accounts.renew_application_token(by, application or "traffic"),
        "create_application": lambda: accounts.create_application(by, "more"),
        "change_application": lambda: accounts.change_application(by, application or "traffic", EVERYTHING),
        "remove_application": lambda: anext(accounts.remove_application(by, application or "traffic")),
    }


async def test_a_token_of_one_application_reaches_nothing_of_another(
    accounts: LocalAccounts, store: SqliteBrokerStore
) -> None:
    traffic, floods = await manager(accounts, "traffic"), await manager(accounts, "floods")
    await session(accounts, "ann", "traffic")
    await accounts.create_group(traffic, "crew", ["ann"])
    stranger = await session(accounts, "bob", "floods")
    before = await store.applications(), await store.subscribers(traffic.application or 0)
    for by in (floods, stranger):
        said = {}
        for there in ("traffic", "nowhere"):
            for name, call in everything(accounts, by, there, "ann", "crew").items():
                with pytest.raises(ForbiddenError) as told:
                    await call()
                said.setdefault(name, set()).add(told.value.message)
        # Whether there is such an application makes no difference to the answer.
        assert {name: len(each) for name, each in said.items()} == dict.fromkeys(said, 1)
    assert (await store.applications(), await store.subscribers(traffic.application or 0)) == before
    assert [each.name for each in await accounts.applications(floods)] == ["floods"]
    # Without a name its own is meant, where there is neither that user nor that group.
    for name, call in everything(accounts, floods, None, "ann", "crew").items():
        if name in {"subscriber", "set_password", "remove_subscriber", "add_members", "remove_members", "remove_group",
                    "group", "members"}:  # fmt: skip
            with pytest.raises(NotFoundError):
                await call()


async def test_a_subscriber_reaches_nobody_but_itself(accounts: LocalAccounts) -> None:
    mine = await session(accounts)
    await session(accounts, "bob")
    await accounts.create_group(OPERATOR, "crew", ["bob"])
    for application in (None, "default"):
        for name, call in everything(accounts, mine, application, "bob", "crew").items():
            if name == "groups":
                assert await call() == []
                continue
            with pytest.raises((ForbiddenError, NotFoundError)):
                await call()
    assert (await accounts.subscriber(mine, "ann")).id == mine.subscriber
    with pytest.raises(ForbiddenError):
        await accounts.applications(mine)
    assert (await accounts.remove_subscriber(mine, "ann")).subscribers == [mine.subscriber]


async def test_the_operator_reaches_every_application_by_its_name(accounts: LocalAccounts) -> None:
    await manager(accounts)
    await session(accounts, "ann", "traffic")
    assert [each.user for each in await accounts.subscribers(OPERATOR, "traffic")] == ["ann"]
    assert await accounts.subscribers(OPERATOR) == []
    assert (await accounts.application(OPERATOR, "traffic")).subscribers == 1
    with pytest.raises(NotFoundError):
        await accounts.subscribers(OPERATOR, "nowhere")


def test_every_limit_of_the_policy_is_one_that_applications_may_have() -> None:
    assert set(AccountPolicy().limits) <= set(LIMITS)
