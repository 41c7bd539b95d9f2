"""Guessing passwords takes long, and hinders nobody else."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from tests.support.local_accounts import OPEN, SECRET, FakeAccountsClock, opened, session
from tocsin.broker.accounts.accounts import Accounts
from tocsin.broker.accounts.passwords import LoginThrottle
from tocsin.serving.limits import WaitingLine
from tocsin.store.broker.sqlite.store import SqliteBrokerStore
from tocsin.wire.errors import LimitError, UnauthorizedError
from tocsin.wire.subscriber import Credentials


async def wrong(accounts: Accounts, user: str, origin: str | None = None, times: int = 1) -> list[type[Exception]]:
    tries = [accounts.login(Credentials(user, "a guess"), origin=origin) for _ in range(times)]
    return [type(each) for each in await asyncio.gather(*tries, return_exceptions=True)]  # type: ignore[misc]


async def test_after_some_wrong_passwords_a_user_can_be_tried_now_and_then_only(
    store: SqliteBrokerStore, clock: FakeAccountsClock
) -> None:
    accounts = await opened(store, clock, replace(OPEN, wrong_passwords=3, wrong_passwords_per_hour=60))
    await accounts.register(None, Credentials("ann", SECRET))
    for user in ("ann", "nobody"):
        # All at once is not more than one after the other.
        assert Counter(await wrong(accounts, user, times=5)) == {UnauthorizedError: 3, LimitError: 2}
        with pytest.raises(LimitError, match="wrong passwords") as refused:
            await accounts.login(Credentials(user, SECRET))
        assert refused.value.status == 429
        assert 50 < refused.value.details["retry_after_s"] <= 60
    clock.now_us += 61_000_000
    assert await accounts.login(Credentials("ann", SECRET))
    # What was right is not counted: the next may be wrong.
    assert Counter(await wrong(accounts, "ann", times=2)) == {UnauthorizedError: 1, LimitError: 1}
    await accounts.register(None, Credentials("bob", SECRET))
    for _ in range(9):
        assert await accounts.login(Credentials("bob", SECRET))
    await accounts.close()


async def test_who_guesses_elsewhere_does_not_lock_a_user_out_where_it_logs_in(
    store: SqliteBrokerStore, clock: FakeAccountsClock
) -> None:
    accounts = await opened(store, clock, replace(OPEN, wrong_passwords=2, wrong_passwords_per_hour=1))
    await accounts.register(None, Credentials("ann", SECRET))
    await accounts.login(Credentials("ann", SECRET), origin="at home")
    assert await wrong(accounts, "ann", "there", times=2) == [UnauthorizedError] * 2
    assert await wrong(accounts, "ann", "elsewhere") == [LimitError]
    assert await accounts.login(Credentials("ann", SECRET), origin="at home")
    assert Counter(await wrong(accounts, "ann", "at home", times=3)) == {UnauthorizedError: 2, LimitError: 1}
    await accounts.close()


async def test_a_token_does_not_help_to_guess_the_password(store: SqliteBrokerStore, clock: FakeAccountsClock) -> None:
    accounts = await opened(store, clock, replace(OPEN, wrong_passwords=2, wrong_passwords_per_hour=1))
    ann = await session(accounts)
    for expected in (UnauthorizedError, UnauthorizedError, LimitError):
        with pytest.raises(expected):
            await accounts.set_password(ann, "ann", "another one", old="a guess")
    await accounts.close()


def test_of_those_who_were_guessed_at_so_many_are_remembered() -> None:
    guesses = LoginThrottle(1, 1, remembered=10)

    def guess_wrong(user: int, origin: str | None) -> None:
        with guesses.attempt(("default", str(user)), origin, 0) as guess:
            guess.right = False

    for user in range(50):
        with guesses.attempt(("default", str(user)), f"from {user}", 0) as guess:
            guess.right = user % 2 == 0
    for user in (31, 47, 49):
        with pytest.raises(LimitError):
            guess_wrong(user, None)
    # Users and addresses before the last ten are forgotten: a guess is free again, and an address is like any other.
    guess_wrong(29, None)
    guess_wrong(30, None)
    guess_wrong(30, "from 30")
    guess_wrong(28, None)
    with pytest.raises(LimitError):
        guess_wrong(28, "from 28")


async def test_one_origin_that_sends_many_passwords_waits_for_itself() -> None:
    turns = WaitingLine(1, 4, "passwords")
    went: list[str] = []

    async def one(origin: str) -> None:
        async with turns.hold_slot(origin):
            went.append(origin)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        async with turns.hold_slot("a"):
            greedy = [asyncio.create_task(one("a")) for _ in range(6)]
            await asyncio.sleep(0)
            assert turns.waiting == 4
            group.create_task(one("b"))
            group.create_task(one("c"))
            await asyncio.sleep(0)
            assert turns.waiting == 4
            with pytest.raises(LimitError):
                await one("a")
            greedy[0].cancel()
        outcomes = await asyncio.gather(*greedy, return_exceptions=True)
    # Two had no place, two gave theirs to others, one left when it was its turn.
    assert [type(each) for each in outcomes].count(LimitError) == 4
    assert went == ["b", "c", "a"]
    assert turns.waiting == 0
    await one("a")
