"""Tokens: made at random, kept as digests, and good until revoked."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.serving.authentication import EVERYBODY
from tocsin.serving.tokens import PREFIX, ROLES, Token, check, digest, mint, require, require_feed, secret_in
from tocsin.store.cluster.sqlite_store import SqliteStore
from tocsin.wire.errors import ForbiddenError, InputError, UnauthorizedError

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Kept:
    name: str
    digest: str
    role: str
    revoked_at: datetime | None = None
    feeds: tuple[str, ...] = ()


def test_a_secret_is_random_recognisable_and_kept_only_as_a_digest() -> None:
    minted = mint("ops", "admin")
    assert minted.secret.startswith(PREFIX)
    assert len(minted.secret) == len(PREFIX) + 43, "32 bytes in base64"
    assert minted.digest == hashlib.sha256(minted.secret.encode()).hexdigest()
    assert minted.secret not in repr(minted)
    assert len({mint("ops", "admin").secret for _ in range(100)}) == 100


def test_the_right_secret_says_who_is_asking() -> None:
    ours, other = mint("ops", "admin"), mint("app", "reader")
    kept = [Kept(each.name, each.digest, each.role) for each in (other, ours)]
    assert check(ours.secret, kept) == Token("ops", "admin")
    assert check(other.secret, kept) == Token("app", "reader")


@given(st.text(st.characters()))
def test_any_other_text_is_refused_and_not_repeated(text: str) -> None:
    minted = mint("ops", "admin")
    for wrong in (text, minted.secret + text + "x", minted.secret[:-1], minted.digest):
        with pytest.raises(UnauthorizedError) as caught:
            check(wrong, [Kept("ops", minted.digest, "admin")])
        assert str(caught.value).startswith("this token is not known")


def test_no_token_has_the_name_of_those_who_need_none() -> None:
    for role in ROLES:
        with pytest.raises(InputError, match="everybody"):
            mint(EVERYBODY.name, role)


def test_without_any_token_kept_nobody_gets_in() -> None:
    with pytest.raises(UnauthorizedError):
        check(mint("ops", "admin").secret, [])


def test_a_revoked_token_is_refused_by_name() -> None:
    minted = mint("ops", "admin")
    with pytest.raises(UnauthorizedError, match="the token ops was revoked"):
        check(minted.secret, [Kept("ops", minted.digest, "admin", NOON)])


@pytest.mark.parametrize("name", ["", "x" * 129, "line\nbreak", "\0"])
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="name"):
        mint(name, "admin")


def test_an_unknown_role_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="root") as caught:
        mint("ops", "root")
    assert caught.value.hint == "roles: reader, broker, writer, admin"


@pytest.mark.parametrize("header", ["Bearer abc", "bearer abc", "BEARER  abc ", " Bearer abc"])
def test_the_secret_is_taken_out_of_the_header(header: str) -> None:
    assert secret_in(header) == "abc"


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic abc", "abc"])
def test_a_header_without_a_token_is_refused(header: str | None) -> None:
    with pytest.raises(UnauthorizedError, match="needs a token"):
        secret_in(header)


def test_a_role_allows_what_the_lesser_ones_do_and_no_more() -> None:
    ranks = list(ROLES)
    for has in ranks:
        for needed in ranks:
            if ranks.index(has) >= ranks.index(needed):
                require(Token("ops", has), needed)
            else:
                with pytest.raises(ForbiddenError, match=f"has the role {has}, and this needs {needed}"):
                    require(Token("ops", has), needed)


def test_a_role_nobody_knows_allows_nothing() -> None:
    with pytest.raises(ForbiddenError):
        require(Token("ops", "emperor"), "reader")


async def test_the_stores_rows_are_what_is_checked_against(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.sqlite")
    await store.open()
    minted = mint("ops", "writer")
    async with store.transaction() as tx:
        row = await tx.add_token(minted.name, minted.digest, minted.role, NOON)
    assert check(minted.secret, await store.tokens()) == Token("ops", "writer")
    assert minted.secret.encode() not in b"".join(file.read_bytes() for file in tmp_path.iterdir())
    async with store.transaction() as tx:
        await tx.revoke_token(row.id, NOON)
    assert await store.tokens() == [replace(row, revoked_at=NOON)]
    with pytest.raises(UnauthorizedError, match="revoked"):
        check(minted.secret, await store.tokens())
    await store.close()


def test_a_digest_is_the_same_every_time() -> None:
    assert digest("tocsin_x") == hashlib.sha256(b"tocsin_x").hexdigest()


def test_a_broker_publishes_to_the_feeds_that_its_token_names_and_to_no_others() -> None:
    minted = mint("east", "broker", ["emergency.Reports", " Mine", "emergency.Reports"])
    assert minted.feeds == ("emergency.Reports", "Default.Mine")
    east = check(minted.secret, [Kept("east", minted.digest, "broker", feeds=minted.feeds)])
    for feed in minted.feeds:
        require_feed(east, feed)
    for token, feed in ((east, "emergency.Other"), (Token("b", "broker"), "v.F"), (Token("r", "reader"), "v.F")):
        with pytest.raises(ForbiddenError, match="may not publish") as refused:
            require_feed(token, feed)
        assert f"--role broker --feeds {feed}" in str(refused.value.hint)
    for role in ("writer", "admin"):
        require_feed(Token("w", role), "v.F")
    with pytest.raises(ForbiddenError):
        require(east, "writer")


@pytest.mark.parametrize(
    ("role", "feeds"), [("writer", ["v.F"]), ("broker", [""]), ("broker", ["v."]), ("broker", [".F"])]
)
def test_feeds_that_cannot_be_named_are_refused(role: str, feeds: list[str]) -> None:
    with pytest.raises(InputError):
        mint("ops", role, feeds)
