"""Accounts under a clock that tests set, and people who are known to them."""

from __future__ import annotations

from typing import Any

from tocsin.broker.accounts.accounts import OPERATOR, Accounts, ManagerIdentity, Session
from tocsin.broker.accounts.local import LocalAccounts
from tocsin.broker.accounts.passwords import Passwords
from tocsin.broker.accounts.policy import AccountPolicy, PasswordCost
from tocsin.store.broker.rows import ApplicationRights
from tocsin.store.broker.sqlite.store import SqliteBrokerStore
from tocsin.wire.subscriber import Credentials

CHEAP = PasswordCost(passes=1, memory_kib=8, lanes=1)
OPEN = AccountPolicy(operator_token="the operator's", open_registration=True, cost=CHEAP)
SECRET = "correct horse"


class FakeAccountsClock:
    def __init__(self) -> None:
        self.now_us = 1_794_000_000_000_000

    def __call__(self) -> int:
        self.now_us += 1
        return self.now_us


async def opened(
    store: SqliteBrokerStore, clock: FakeAccountsClock, policy: AccountPolicy = OPEN, passwords: Passwords | None = None
) -> LocalAccounts:
    accounts = LocalAccounts(store, policy, clock, passwords)
    await accounts.open()
    return accounts


async def session(accounts: Accounts, user: str = "ann", application: str = "default") -> Session:
    """A user that has registered and logged in."""
    await accounts.register(OPERATOR, Credentials(user, SECRET, application))
    found = await accounts.who((await accounts.login(Credentials(user, SECRET, application))).token)
    assert isinstance(found, Session)
    return found


async def manager(accounts: Accounts, name: str = "traffic", **fields: Any) -> ManagerIdentity:
    """An application that was made for this, and who manages it."""
    found = await accounts.who((await accounts.create_application(OPERATOR, name, ApplicationRights(**fields))).token)
    assert isinstance(found, ManagerIdentity)
    return found
