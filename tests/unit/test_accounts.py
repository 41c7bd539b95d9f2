"""Accounts in a broker's own store: who asks, how long their tokens are good, and what each may reach."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pytest

from tocsin.broker.accounts.accounts import LIMITS, OPERATOR, Accounts, Manager, Principal, Rights, Session
from tocsin.broker.accounts.guesses import Guesses
from tocsin.broker.accounts.local import LocalAccounts
from tocsin.broker.accounts.passwords import Passwords
from tocsin.broker.accounts.policy import AT_ONCE, AccountPolicy, PasswordCost
from tocsin.broker.accounts.sessions import KEY
from tocsin.broker.accounts.turns import Turns
from tocsin.rules.model.cursors import START
from tocsin.store.broker_checks import PERSON_LIMIT
from tocsin.store.broker_rows import EVERYTHING, Allowed, NewBackend, Wanted
from tocsin.store.sqlite_broker import SqliteBrokerStore
from tocsin.wire.errors import (
    ConflictError,
    ForbiddenError,
    InputError,
    LimitError,
    NotFoundError,
    UnauthorizedError,
)
from tocsin.wire.subscriber import PASSWORD_LIMIT_BYTES, Credentials

CHEAP = PasswordCost(passes=1, memory_kib=8, lanes=1)
OPEN = AccountPolicy(operator_token="the operator's", open_registration=True, cost=CHEAP)
SECRET = "correct horse"


class Clock:
    def __init__(self) -> None:
        self.now_us = 1_794_000_000_000_000

    def __call__(self) -> int:
        self.now_us += 1
        return self.now_us


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(tmp_path: Path) -> Any:
    store = SqliteBrokerStore(tmp_path / "broker.db")
    await store.open()
    yield store
    await store.close()


async def opened(store: SqliteBrokerStore, clock: Clock, policy: AccountPolicy = OPEN) -> LocalAccounts:
    accounts = LocalAccounts(store, policy, clock)
    await accounts.open()
    return accounts


@pytest.fixture
async def accounts(store: SqliteBrokerStore, clock: Clock) -> Any:
    accounts = await opened(store, clock)
    yield accounts
    await accounts.close()


async def session(accounts: Accounts, user: str = "ann", application: str = "default") -> Session:
    """A user that has registered and logged in."""
    await accounts.register(OPERATOR, Credentials(user, SECRET, application))
    found = await accounts.who((await accounts.login(Credentials(user, SECRET, application))).token)
    assert isinstance(found, Session)
    return found


async def manager(accounts: Accounts, name: str = "traffic", **fields: Any) -> Manager:
    """An application that was made for this, and who manages it."""
    found = await accounts.who((await accounts.create_application(OPERATOR, name, Allowed(**fields))).token)
    assert isinstance(found, Manager)
    return found


# --- registering and logging in


async def test_who_registers_can_log_in_and_is_known_by_the_token(accounts: LocalAccounts, clock: Clock) -> None:
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
    accounts: LocalAccounts, wrong: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    await accounts.register(None, Credentials("ann", SECRET))
    checked: list[str] = []
    verified = Passwords._verified

    def counting(self: Passwords, kept: str, password: str) -> bool:
        checked.append(kept)
        return verified(self, kept, password)

    monkeypatch.setattr(Passwords, "_verified", counting)
    with pytest.raises(UnauthorizedError, match=r"^the user or the password is wrong$"):
        await accounts.login(wrong)
    assert len(checked) == 1
    assert checked[0].startswith("$argon2id$v=19$m=8,t=1,p=1$"), "the same work as for one who is there"


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
    assert sorted(type(each).__name__ for each in both) == ["ConflictError", "Subscriber"]
    with pytest.raises(ConflictError, match="already"):
        await accounts.register(None, Credentials("ann", "another one"))
    await accounts.login(Credentials("ann", SECRET))


async def test_where_registration_is_not_open_it_takes_a_token(store: SqliteBrokerStore, clock: Clock) -> None:
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


async def test_passwords_wait_in_a_bounded_line(store: SqliteBrokerStore, clock: Clock) -> None:
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


async def test_passwords_are_checked_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    passwords = Passwords(CHEAP, threads=1, waiting=1)
    await passwords.open()
    kept = await passwords.hashed(SECRET)
    used: list[threading.Thread] = []
    verified = Passwords._verified

    def noting(self: Passwords, kept: str, password: str) -> bool:
        used.append(threading.current_thread())
        return verified(self, kept, password)

    monkeypatch.setattr(Passwords, "_verified", noting)
    assert await passwords.matches(SECRET, kept)
    assert not await passwords.matches(SECRET, None)
    assert not await passwords.matches(SECRET, "not a hash")
    assert threading.main_thread() not in used
    await passwords.close()


async def test_a_cancelled_check_keeps_its_place_until_it_is_done() -> None:
    passwords = Passwords(CHEAP, threads=1, waiting=0)
    begun, may_end = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait(10)

    task = asyncio.create_task(passwords._run(work, None))
    await asyncio.to_thread(begun.wait, 10)
    task.cancel()
    await asyncio.sleep(0)
    with pytest.raises(LimitError):
        await passwords.hashed(SECRET)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await passwords.hashed(SECRET)
    await passwords.close()


async def test_a_hash_of_another_cost_is_made_anew_at_the_next_login(store: SqliteBrokerStore, clock: Clock) -> None:
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


# --- tokens


async def test_a_token_ends_by_itself_and_a_fresh_one_goes_on(accounts: LocalAccounts, clock: Clock) -> None:
    await accounts.register(None, Credentials("ann", SECRET))
    old = (await accounts.login(Credentials("ann", SECRET))).token
    clock.now_us += 3_000_000_000
    found = await accounts.who(old)
    assert isinstance(found, Session)
    fresh = (await accounts.renew(found)).token
    assert isinstance(await accounts.who(old), Session)
    clock.now_us += 700_000_000
    with pytest.raises(UnauthorizedError, match="has ended"):
        await accounts.who(old)
    assert isinstance(await accounts.who(fresh), Session)


async def test_a_logout_ends_one_token_also_after_a_restart_and_is_forgotten_with_it(
    store: SqliteBrokerStore, clock: Clock
) -> None:
    accounts = await opened(store, clock)
    await accounts.register(None, Credentials("ann", SECRET))
    one, two = [(await accounts.login(Credentials("ann", SECRET))).token for _ in range(2)]
    found = await accounts.who(one)
    assert isinstance(found, Session)
    await accounts.logout(found)
    await accounts.logout(found)
    for _ in range(2):
        with pytest.raises(UnauthorizedError, match="logout"):
            await accounts.who(one)
        assert isinstance(await accounts.who(two), Session)
        with pytest.raises(UnauthorizedError):
            await accounts.renew(found)
        await accounts.close()
        accounts = await opened(store, clock)
    assert len(await store.revoked()) == 1
    clock.now_us += 3_700_000_000
    last = await session(accounts, "bob")
    await accounts.logout(last)
    assert set(await store.revoked()) == {last.token_id}
    await accounts.close()


async def forged(store: SqliteBrokerStore, clock: Clock) -> dict[str, str]:
    """A good token of the first subscriber, and some that nobody should be taken in by."""
    key = await store.fact(KEY)
    assert key is not None
    said = {"iss": "tocsin", "sub": "1", "jti": "x", "iat": clock.now_us / 1e6, "exp": clock.now_us / 1e6 + 60}
    right = base64.b64decode(key)
    later = jwt.encode({**said, "exp": said["exp"] + 60}, right, "HS256").split(".")[1]
    signature = jwt.encode(said, right, "HS256").split(".")[2]
    assert len(jwt.encode(said, right, "HS256")) < 300, "short enough for every header"
    return {
        "good": jwt.encode(said, right, "HS256"),
        "another key": jwt.encode(said, b"k" * 32, "HS256"),
        "no signature": jwt.encode(said, None, "none"),
        "another algorithm": jwt.encode(said, right + right, "HS512"),
        "the key as text": jwt.encode(said, key, "HS256"),
        "another issuer": jwt.encode({**said, "iss": "else"}, right, "HS256"),
        "no end": jwt.encode({name: said[name] for name in said if name != "exp"}, right, "HS256"),
        "no id": jwt.encode({name: said[name] for name in said if name != "jti"}, right, "HS256"),
        "another end": ".".join((*jwt.encode(said, right, "HS256").split(".")[:1], later, signature)),
        "no number": jwt.encode({**said, "sub": "ann"}, right, "HS256"),
        "nobody": jwt.encode({**said, "sub": "999"}, right, "HS256"),
        "garbage": "a.b.c",
        "empty": "",
        "huge": "x" * 100_000,
        "an application's": "tocsin_app_unknown",
        "not ASCII": "\u00e9.\u00e9.\u00e9",
        "half a character": "\ud800",
    }


async def test_forged_tokens_are_refused_whatever_they_look_like(
    accounts: LocalAccounts, store: SqliteBrokerStore, clock: Clock
) -> None:
    await accounts.register(None, Credentials("ann", SECRET))
    tokens = await forged(store, clock)
    assert isinstance(await accounts.who(tokens.pop("good")), Session)
    for what, token in tokens.items():
        with pytest.raises(UnauthorizedError) as told:
            await accounts.who(token)
        assert told.value.status == 401, what


async def test_without_a_token_only_those_where_everybody_operates_are_known(
    accounts: LocalAccounts, store: SqliteBrokerStore, clock: Clock
) -> None:
    with pytest.raises(UnauthorizedError, match="needs a token"):
        await accounts.who(None)
    assert await accounts.who("the operator's") == OPERATOR
    alone = await opened(store, clock, replace(OPEN, operator_token="", everybody_operates=True))
    assert await alone.who(None) == OPERATOR
    with pytest.raises(UnauthorizedError):
        await alone.who("")
    await alone.close()


async def test_another_password_ends_all_tokens_from_before(accounts: LocalAccounts) -> None:
    mine = await session(accounts)
    old = (await accounts.renew(mine)).token
    with pytest.raises(UnauthorizedError, match="old password"):
        await accounts.set_password(mine, "ann", "another secret", old="wrong")
    with pytest.raises(UnauthorizedError, match="old password"):
        await accounts.set_password(mine, "ann", "another secret")
    await accounts.set_password(mine, "ann", "another secret", old=SECRET)
    for refused in (accounts.who(old), accounts.renew(mine), accounts.login(Credentials("ann", SECRET))):
        with pytest.raises(UnauthorizedError):
            await refused
    fresh = (await accounts.login(Credentials("ann", "another secret"))).token
    assert isinstance(await accounts.who(fresh), Session)
    await accounts.set_password(OPERATOR, "ann", "a third secret")
    with pytest.raises(UnauthorizedError):
        await accounts.who(fresh)


async def test_a_login_that_a_new_password_overtakes_gives_a_token_that_is_good_no_more(
    accounts: LocalAccounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    await accounts.register(None, Credentials("ann", SECRET))
    matches = Passwords.matches

    async def overtaken(self: Passwords, password: str, kept: str | None, origin: str | None) -> bool:
        found = await matches(self, password, kept, origin)
        await accounts.set_password(OPERATOR, "ann", "another secret")
        return found

    monkeypatch.setattr(Passwords, "matches", overtaken)
    told = await accounts.login(Credentials("ann", SECRET))
    with pytest.raises(UnauthorizedError):
        await accounts.who(told.token)


async def test_a_removed_subscriber_is_nobody_also_to_a_token_in_use(accounts: LocalAccounts) -> None:
    mine = await session(accounts)
    token = (await accounts.renew(mine)).token
    assert isinstance(await accounts.who(token), Session)
    removed = await accounts.remove_subscriber(OPERATOR, "ann")
    assert removed.subscribers == [mine.subscriber]
    for refused in (accounts.who(token), accounts.renew(mine)):
        with pytest.raises(UnauthorizedError):
            await refused
    # One of the same name is somebody else.
    await session(accounts)
    with pytest.raises(UnauthorizedError):
        await accounts.who(token)


# --- applications


async def test_an_application_gets_a_token_once_and_may_use_what_was_said(
    accounts: LocalAccounts, store: SqliteBrokerStore, clock: Clock
) -> None:
    made = await accounts.create_application(OPERATOR, "traffic", Allowed(["v.jams"], [], {"subscribers": 1}))
    assert made.token.startswith("tocsin_app_")
    assert made.token not in repr(made)
    assert await accounts.who(made.token) == Manager(made.application.id, "traffic")
    rights = accounts.rights(made.application.id)
    assert (rights.may_subscribe("v.jams"), rights.may_subscribe("v.other"), rights.may_publish("v.f")) == (
        True,
        False,
        False,
    )
    assert rights.limits == {"subscribers": 1}
    again = await opened(store, clock)
    assert await again.who(made.token) == Manager(made.application.id, "traffic")
    assert again.rights(made.application.id) == rights
    await again.close()


async def test_changed_rights_count_at_once(accounts: LocalAccounts) -> None:
    own = await manager(accounts, channels=["v.a"])
    assert own.application is not None
    await accounts.change_application(OPERATOR, "traffic", Allowed(feeds=["v.f"], limits={"groups": 0}))
    assert accounts.rights(own.application) == Rights(None, frozenset({"v.f"}), {"groups": 0})
    with pytest.raises(LimitError) as told:
        await accounts.create_group(own, "crew")
    assert told.value.status == 429
    assert accounts.rights(999) == Rights(frozenset(), frozenset())


async def test_what_is_held_of_channels_that_were_taken_away_ends_also_after_a_crash(
    store: SqliteBrokerStore, clock: Clock
) -> None:
    accounts = await opened(store, clock)
    own = await manager(accounts, channels=["v.a", "v.b"])
    ann = await session(accounts, "ann", "traffic")
    backends = [NewBackend(each, f"v.{'ab'[each % 2]}", f"[{each}]", f"s{each}", START) for each in range(1, 601)]
    await store.subscribe([Wanted(ann.subscriber, one.interest) for one in backends], backends=backends, created_us=1)
    assert own.application is not None
    assert [one async for one in accounts.end_outside(own.application)] == []
    await accounts.change_application(OPERATOR, "traffic", Allowed(["v.b"]))
    steps = accounts.end_outside(own.application)
    assert len(await anext(steps)) == 200
    await accounts.close()
    # Killed here, and started again.
    again = await opened(store, clock)
    held = await store.frontends_of(ann.subscriber)
    assert {backends[one.interest - 1].channel for one in held} == {"v.b"}
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
    assert isinstance(default, Manager)
    assert default.application_name == "default"


@pytest.mark.parametrize("limits", [{"unknown": 1}, {"subscribers": -1}, {"subscribers": True}, {"members": 1.5}])
async def test_limits_that_make_no_sense_are_refused_by_name(accounts: LocalAccounts, limits: Any) -> None:
    with pytest.raises(InputError, match=rf"limits\.{next(iter(limits))}"):
        await accounts.create_application(OPERATOR, "traffic", Allowed(limits=limits))
    assert [each.name for each in await accounts.applications(OPERATOR)] == ["default"]


async def test_an_application_has_at_most_so_many_subscribers(accounts: LocalAccounts) -> None:
    own = await manager(accounts, limits={"subscribers": 1})
    await accounts.register(own, Credentials("ann", SECRET))
    with pytest.raises(LimitError, match="as many subscribers") as told:
        await accounts.register(own, Credentials("bob", SECRET))
    assert told.value.status == 429
    assert [each.subscribers for each in await accounts.applications(OPERATOR)] == [0, 1]


async def test_a_removed_application_takes_all_it_has_along(
    accounts: LocalAccounts, store: SqliteBrokerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tocsin.broker.accounts.applications.STEP", 2)
    made = await accounts.create_application(OPERATOR, "traffic")
    own = await accounts.who(made.token)
    users = [await session(accounts, f"user{n}", "traffic") for n in range(5)]
    token = (await accounts.renew(users[0])).token
    other = await session(accounts)
    backends = [NewBackend(1, "v.c", "[]", "s", START)]
    await store.subscribe(
        [Wanted(users[4].subscriber, 1), Wanted(other.subscriber, 1)], backends=backends, created_us=1
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


async def test_a_removal_that_was_interrupted_is_brought_to_its_end(
    store: SqliteBrokerStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tocsin.broker.accounts.applications.STEP", 1)
    accounts = await opened(store, clock)
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


# --- groups


async def test_members_share_what_their_group_holds(accounts: LocalAccounts, store: SqliteBrokerStore) -> None:
    own = await manager(accounts)
    ann, bob = [await session(accounts, user, "traffic") for user in ("ann", "bob")]
    crew = (await accounts.create_group(own, "crew", ["ann", "ann"])).group
    backends = [NewBackend(1, "v.c", "[]", "s", START)]
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


# --- who reaches whom


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


# --- guessing


async def wrong(accounts: Accounts, user: str, origin: str | None = None, times: int = 1) -> list[type[Exception]]:
    tries = [accounts.login(Credentials(user, "a guess"), origin=origin) for _ in range(times)]
    return [type(each) for each in await asyncio.gather(*tries, return_exceptions=True)]  # type: ignore[misc]


async def test_after_some_wrong_passwords_a_user_can_be_tried_now_and_then_only(
    store: SqliteBrokerStore, clock: Clock
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
    store: SqliteBrokerStore, clock: Clock
) -> None:
    accounts = await opened(store, clock, replace(OPEN, wrong_passwords=2, wrong_passwords_per_hour=1))
    await accounts.register(None, Credentials("ann", SECRET))
    await accounts.login(Credentials("ann", SECRET), origin="at home")
    assert await wrong(accounts, "ann", "there", times=2) == [UnauthorizedError] * 2
    assert await wrong(accounts, "ann", "elsewhere") == [LimitError]
    assert await accounts.login(Credentials("ann", SECRET), origin="at home")
    assert Counter(await wrong(accounts, "ann", "at home", times=3)) == {UnauthorizedError: 2, LimitError: 1}
    await accounts.close()


async def test_a_token_does_not_help_to_guess_the_password(store: SqliteBrokerStore, clock: Clock) -> None:
    accounts = await opened(store, clock, replace(OPEN, wrong_passwords=2, wrong_passwords_per_hour=1))
    ann = await session(accounts)
    for expected in (UnauthorizedError, UnauthorizedError, LimitError):
        with pytest.raises(expected):
            await accounts.set_password(ann, "ann", "another one", old="a guess")
    await accounts.close()


def test_of_those_who_were_guessed_at_so_many_are_remembered() -> None:
    guesses = Guesses(1, 1, remembered=10)
    for each in range(50):
        with guesses.one(("default", str(each)), f"from {each}", 0) as guess:
            guess.was(each % 2 == 0)
    assert len(guesses._left) == len(guesses._homes) == 10
    for each in (47, 49):
        with pytest.raises(LimitError), guesses.one(("default", str(each)), None, 0):
            pass


async def test_one_origin_that_sends_many_passwords_waits_for_itself() -> None:
    turns = Turns(1, 4, "passwords")
    went: list[str] = []

    async def one(origin: str) -> None:
        async with turns.taken(origin):
            went.append(origin)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        async with turns.taken("a"):
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
