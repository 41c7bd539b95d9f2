"""A token is good until it ends, is ended, or another secret signs them."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path

import jwt
import pytest

from tests.support.local_accounts import CHEAP, OPEN, SECRET, FakeAccountsClock, opened, session
from tocsin.broker.accounts.accounts import OPERATOR, Session
from tocsin.broker.accounts.local import LocalAccounts
from tocsin.broker.accounts.passwords import Passwords
from tocsin.broker.accounts.sessions import SessionTokens
from tocsin.store.broker import broker_backup
from tocsin.store.broker.rows import SESSION_KEY
from tocsin.store.broker.sqlite.store import SqliteBrokerStore
from tocsin.wire.errors import UnauthorizedError
from tocsin.wire.subscriber import Credentials


async def test_a_token_ends_by_itself_and_a_fresh_one_goes_on(
    accounts: LocalAccounts, clock: FakeAccountsClock
) -> None:
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


async def test_a_logout_ends_every_token_of_its_session_whoever_renewed_them(accounts: LocalAccounts) -> None:
    await accounts.register(None, Credentials("ann", SECRET))
    mine = (await accounts.login(Credentials("ann", SECRET))).token
    found = await accounts.who(mine)
    assert isinstance(found, Session)
    # Who has stolen a token renews it, and then that one.
    stolen = [(await accounts.renew(found)).token]
    for _ in range(2):
        thief = await accounts.who(stolen[-1])
        assert isinstance(thief, Session)
        stolen.append((await accounts.renew(thief)).token)
    other = (await accounts.login(Credentials("ann", SECRET))).token
    await accounts.logout(found)
    for token in (mine, *stolen):
        with pytest.raises(UnauthorizedError, match="logout"):
            await accounts.who(token)
    with pytest.raises(UnauthorizedError, match="logout"):
        await accounts.renew(thief)
    assert isinstance(await accounts.who(other), Session)


async def test_a_session_is_not_renewed_without_end(store: SqliteBrokerStore, clock: FakeAccountsClock) -> None:
    accounts = await opened(store, clock, replace(OPEN, session_s=10_000.0))
    await accounts.register(None, Credentials("ann", SECRET))
    token = (await accounts.login(Credentials("ann", SECRET))).token
    for _ in range(3):
        clock.now_us += 3_000_000_000
        found = await accounts.who(token)
        assert isinstance(found, Session)
        token = (await accounts.renew(found)).token
    clock.now_us += 3_000_000_000
    found = await accounts.who(token)
    assert isinstance(found, Session)
    with pytest.raises(UnauthorizedError, match="as long as it may"):
        await accounts.renew(found)
    clock.now_us += 600_000_000
    with pytest.raises(UnauthorizedError, match="has ended"):
        await accounts.who(token)
    assert isinstance(await accounts.who((await accounts.login(Credentials("ann", SECRET))).token), Session)
    await accounts.close()


async def test_a_token_from_before_there_were_sessions_is_one_of_its_own(
    accounts: LocalAccounts, store: SqliteBrokerStore, clock: FakeAccountsClock
) -> None:
    await accounts.register(None, Credentials("ann", SECRET))
    old = (await forged(store, clock))["good"]
    found = await accounts.who(old)
    assert isinstance(found, Session)
    fresh = (await accounts.renew(found)).token
    await accounts.logout(found)
    for token in (old, fresh):
        with pytest.raises(UnauthorizedError, match="logout"):
            await accounts.who(token)


async def test_a_logout_ends_one_session_also_after_a_restart_and_is_forgotten_with_it(
    store: SqliteBrokerStore, clock: FakeAccountsClock
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
    assert len(await store.revoked_tokens()) == 1
    clock.now_us += 90_000_000_000
    last = await session(accounts, "bob")
    await accounts.logout(last)
    assert set(await store.revoked_tokens()) == {last.session_id}
    await accounts.close()


async def forged(store: SqliteBrokerStore, clock: FakeAccountsClock) -> dict[str, str]:
    """A good token of the first subscriber, and some that nobody should be taken in by."""
    key = await store.fact(SESSION_KEY)
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
    accounts: LocalAccounts, store: SqliteBrokerStore, clock: FakeAccountsClock
) -> None:
    await accounts.register(None, Credentials("ann", SECRET))
    tokens = await forged(store, clock)
    assert isinstance(await accounts.who(tokens.pop("good")), Session)
    for what, token in tokens.items():
        with pytest.raises(UnauthorizedError) as told:
            await accounts.who(token)
        assert told.value.status == 401, what


async def test_without_a_token_only_those_where_everybody_operates_are_known(
    accounts: LocalAccounts, store: SqliteBrokerStore, clock: FakeAccountsClock
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


async def test_a_clock_that_is_set_back_locks_nobody_out_and_saves_no_old_token(
    accounts: LocalAccounts, clock: FakeAccountsClock
) -> None:
    await accounts.register(None, Credentials("ann", SECRET))
    await accounts.set_password(OPERATOR, "ann", "another secret")
    clock.now_us -= 3600 * 1_000_000
    token = (await accounts.login(Credentials("ann", "another secret"))).token
    mine = await accounts.who(token)
    assert isinstance(mine, Session)
    renewed = (await accounts.renew(mine)).token
    assert isinstance(await accounts.who(renewed), Session)
    await accounts.set_password(OPERATOR, "ann", "a third secret")
    for old in (token, renewed):
        with pytest.raises(UnauthorizedError):
            await accounts.who(old)
    assert isinstance(await accounts.who((await accounts.login(Credentials("ann", "a third secret"))).token), Session)


async def test_a_login_that_a_new_password_overtakes_gives_a_token_that_is_good_no_more(
    store: SqliteBrokerStore, clock: FakeAccountsClock
) -> None:
    class OvertakenPasswords(Passwords):
        async def matches(self, password: str, kept: str | None, origin: str | None = None) -> bool:
            found = await super().matches(password, kept, origin)
            await accounts.set_password(OPERATOR, "ann", "another secret")
            return found

    accounts = await opened(store, clock, passwords=OvertakenPasswords(CHEAP, threads=1, waiting=1))
    await accounts.register(None, Credentials("ann", SECRET))
    answer = await accounts.login(Credentials("ann", SECRET))
    with pytest.raises(UnauthorizedError):
        await accounts.who(answer.token)
    await accounts.close()


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


async def test_after_a_restore_no_token_is_good_and_none_is_anybody_elses(
    tmp_path: Path, clock: FakeAccountsClock
) -> None:
    store = SqliteBrokerStore(tmp_path / "broker-a.db")
    await store.open()
    accounts = await opened(store, clock)
    ann = await accounts.register(None, Credentials("ann", SECRET))
    anns = (await accounts.login(Credentials("ann", SECRET))).token
    await broker_backup.save(store.path, tmp_path / "saved")
    mallory = await accounts.register(None, Credentials("mallory", SECRET))
    old = (await accounts.login(Credentials("mallory", SECRET))).token
    await accounts.close()
    await store.close()

    await broker_backup.restore_broker(tmp_path / "saved", tmp_path / "broker-b.db")
    store = SqliteBrokerStore(tmp_path / "broker-b.db")
    await store.open()
    accounts = await opened(store, clock)
    clock.now_us += 1
    victim = await accounts.register(None, Credentials("victim", SECRET))
    assert victim.id == mallory.id, "numbers of subscribers are given again"
    for token in (anns, old):
        with pytest.raises(UnauthorizedError):
            await accounts.who(token)
    fresh = await accounts.who((await accounts.login(Credentials("ann", SECRET))).token)
    assert isinstance(fresh, Session)
    assert fresh.subscriber == ann.id
    await accounts.close()
    await store.close()


async def test_a_token_from_before_a_subscriber_is_not_the_subscribers(
    store: SqliteBrokerStore, clock: FakeAccountsClock
) -> None:
    accounts = await opened(store, clock)
    tokens = SessionTokens(store, 3_600.0, 3_600.0, clock)
    await tokens.open()
    early, _ = tokens.issue(1, clock.now_us)
    clock.now_us += 1
    made = await accounts.register(None, Credentials("ann", SECRET))
    assert made.id == 1
    with pytest.raises(UnauthorizedError):
        await accounts.who(early)
    assert isinstance(await accounts.who((await accounts.login(Credentials("ann", SECRET))).token), Session)
    await accounts.close()


async def test_an_ended_session_is_not_forgotten_while_the_clock_is_suspect(
    store: SqliteBrokerStore, clock: FakeAccountsClock
) -> None:
    right_us = clock.now_us
    tokens = SessionTokens(store, 3_600.0, 3_600.0, clock, lambda: right_us)
    await tokens.open()
    await tokens.end("ended before")
    clock.now_us += 10 * 365 * 86_400 * 1_000_000
    await tokens.end("ended meanwhile")
    clock.now_us = right_us
    again = SessionTokens(store, 3_600.0, 3_600.0, clock, lambda: right_us)
    await again.open()
    for session_id in ("ended before", "ended meanwhile"):
        with pytest.raises(UnauthorizedError):
            again.check_kept(session_id)
