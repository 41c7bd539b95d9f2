"""A registered user can log in; a wrong user, application or password gives one and the same error."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest
from argon2 import PasswordHasher

from tests.support.local_accounts import CHEAP, OPEN, SECRET, FakeAccountsClock, manager, opened, session
from tocsin.broker.accounts.accounts import OPERATOR, Session
from tocsin.broker.accounts.local import LocalAccounts
from tocsin.broker.accounts.passwords import Passwords
from tocsin.broker.accounts.policy import AccountPolicy
from tocsin.store.broker.checks import PERSON_LIMIT
from tocsin.store.broker.sqlite.store import SqliteBrokerStore
from tocsin.wire.errors import ConflictError, ForbiddenError, InputError, LimitError, UnauthorizedError
from tocsin.wire.subscriber import PASSWORD_LIMIT_BYTES, Credentials


async def test_who_registers_can_log_in_and_is_known_by_the_token(
    accounts: LocalAccounts, clock: FakeAccountsClock
) -> None:
    made = await accounts.register(None, Credentials("ann", SECRET))
    told = await accounts.login(Credentials("ann", SECRET))
    assert (told.user, told.application) == ("ann", "default")
    assert abs(told.expires_at.timestamp() - clock.now_us / 1e6 - 3_600) < 1
    found = await accounts.who(told.token)
    assert isinstance(found, Session)
    assert (found.subscriber, found.user, found.application_name) == (made.id, "ann", "default")


@pytest.mark.parametrize(
    "wrong",
    [
        Credentials("ann", "wrong horse"),
        Credentials("bob", SECRET),
        Credentials("Ann", SECRET),
        Credentials("ann", SECRET, "nowhere"),
        Credentials("a\0nn", SECRET),
        Credentials("", SECRET),
        Credentials("ann", ""),
        Credentials("x" * 10_000, SECRET),
    ],
    ids=lambda wrong: repr(wrong)[:40],
)
async def test_whatever_is_wrong_the_answer_is_the_same_and_a_password_was_checked(
    store: SqliteBrokerStore, clock: FakeAccountsClock, wrong: Credentials
) -> None:
    checked: list[str] = []

    def verify(kept: str, password: str) -> bool:
        checked.append(kept)
        return PasswordHasher().verify(kept, password)

    accounts = await opened(store, clock, passwords=Passwords(CHEAP, threads=1, waiting=1, verify=verify))
    await accounts.register(None, Credentials("ann", SECRET))
    with pytest.raises(UnauthorizedError, match=r"^the user or the password is wrong$"):
        await accounts.login(wrong)
    assert len(checked) == 1
    assert checked[0].startswith("$argon2id$v=19$m=8,t=1,p=1$"), "the same work as for one who is there"
    await accounts.close()


async def test_names_and_passwords_are_the_same_however_they_are_composed(accounts: LocalAccounts) -> None:
    await accounts.register(None, Credentials("zo\u00eb", "caf\u00e9 caf\u00e9"))
    told = await accounts.login(Credentials("zoe\u0308", "cafe\u0301 cafe\u0301"))
    assert told.user == "zo\u00eb"
    with pytest.raises(ConflictError):
        await accounts.register(None, Credentials("zoe\u0308", SECRET))


@pytest.mark.parametrize(
    ("credentials", "error"),
    [
        (Credentials("", SECRET), InputError),
        (Credentials("a\nb", SECRET), InputError),
        (Credentials(" ann", SECRET), InputError),
        (Credentials("\ud800", SECRET), InputError),
        (Credentials("x" * (PERSON_LIMIT + 1), SECRET), LimitError),
        (Credentials("ann", "short"), InputError),
        (Credentials("ann", "\ud800" * 9), InputError),
        (Credentials("ann", "x" * (PASSWORD_LIMIT_BYTES + 1)), LimitError),
    ],
)
async def test_names_and_passwords_have_bounds(
    accounts: LocalAccounts, credentials: Credentials, error: type[InputError]
) -> None:
    with pytest.raises(error) as told:
        await accounts.register(None, credentials)
    assert told.value.status == 400
    assert credentials.password == "short" or credentials.password not in str(told.value)
    assert await accounts.subscribers(OPERATOR) == []


async def test_a_user_registers_once(accounts: LocalAccounts) -> None:
    both = await asyncio.gather(
        *(accounts.register(None, Credentials("ann", SECRET)) for _ in range(2)), return_exceptions=True
    )
    assert sorted(type(each).__name__ for each in both) == ["ConflictError", "SubscriberRow"]
    with pytest.raises(ConflictError, match="already"):
        await accounts.register(None, Credentials("ann", "another one"))
    await accounts.login(Credentials("ann", SECRET))


async def test_where_registration_is_not_open_it_takes_a_token(
    store: SqliteBrokerStore, clock: FakeAccountsClock
) -> None:
    accounts = await opened(store, clock, replace(OPEN, open_registration=False))
    own = await manager(accounts)
    with pytest.raises(ForbiddenError, match="register"):
        await accounts.register(None, Credentials("ann", SECRET))
    made = await accounts.register(OPERATOR, Credentials("ann", SECRET))
    with pytest.raises(ForbiddenError, match="register"):
        await accounts.register(await session(accounts, "bob"), Credentials("cid", SECRET))
    mine = await accounts.register(own, Credentials("ann", SECRET, "traffic"))
    # Who does not name an application names this one.
    also = await accounts.register(own, Credentials("bob", SECRET))
    assert made.application != mine.application == also.application == own.application
    await accounts.close()


async def test_open_registration_leads_into_the_default_application_only(accounts: LocalAccounts) -> None:
    await manager(accounts)
    for application in ("traffic", "nowhere"):
        with pytest.raises(ForbiddenError, match="default"):
            await accounts.register(None, Credentials("ann", SECRET, application))


async def test_passwords_wait_in_a_bounded_line(store: SqliteBrokerStore, clock: FakeAccountsClock) -> None:
    accounts = await opened(store, clock, replace(OPEN, threads=1, waiting=2))
    await accounts.register(None, Credentials("ann", SECRET))
    logins = [accounts.login(Credentials("ann", SECRET)) for _ in range(20)]
    outcomes = await asyncio.gather(*logins, return_exceptions=True)
    refused = [each for each in outcomes if isinstance(each, LimitError)]
    assert refused
    assert all((each.status, each.details["retry_after_s"]) == (429, 1) for each in refused)
    assert all(isinstance(each, LimitError) or each.user == "ann" for each in outcomes)  # type: ignore[union-attr]
    # Afterwards there is room again.
    await accounts.login(Credentials("ann", SECRET))
    await accounts.close()


async def test_passwords_are_checked_off_the_event_loop() -> None:
    used: list[threading.Thread] = []

    def verify(kept: str, password: str) -> bool:
        used.append(threading.current_thread())
        return PasswordHasher().verify(kept, password)

    passwords = Passwords(CHEAP, threads=1, waiting=1, verify=verify)
    await passwords.open()
    kept = await passwords.hash(SECRET)
    assert await passwords.matches(SECRET, kept)
    assert not await passwords.matches(SECRET, None)
    assert not await passwords.matches(SECRET, "not a hash")
    assert len(used) == 3
    assert threading.main_thread() not in used
    await passwords.close()


async def test_a_cancelled_check_keeps_its_place_until_it_is_done() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def verify(_kept: str, _password: str) -> bool:
        begun.set()
        return may_end.wait(10)

    passwords = Passwords(CHEAP, threads=1, waiting=0, verify=verify)
    task = asyncio.create_task(passwords.matches(SECRET, None))
    await asyncio.to_thread(begun.wait, 10)
    task.cancel()
    await asyncio.sleep(0)
    with pytest.raises(LimitError):
        await passwords.hash(SECRET)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await passwords.hash(SECRET)
    await passwords.close()


async def test_a_hash_of_another_cost_is_made_anew_at_the_next_login(
    store: SqliteBrokerStore, clock: FakeAccountsClock
) -> None:
    before = await opened(store, clock)
    made = await before.register(None, Credentials("ann", SECRET))
    await before.close()
    after = await opened(store, clock, replace(OPEN, cost=replace(CHEAP, memory_kib=16)))
    await after.login(Credentials("ann", SECRET))
    kept = await store.subscriber_by_id(made.id)
    assert kept is not None
    assert kept.password.startswith("$argon2id$v=19$m=16,")
    await after.login(Credentials("ann", SECRET))
    await after.close()


def test_by_default_a_password_costs_what_owasp_advises() -> None:
    cost = AccountPolicy().cost
    assert (cost.passes, cost.memory_kib, cost.lanes) == (2, 19 * 1024, 1)
