"""Tokens: a secret that whoever asks shows, and a digest that whoever answers keeps.

mint(name, role) ─▶ secret (shown once, never kept) + digest (kept)
check(secret, kept) ─▶ Token(name, role), or UnauthorizedError
require(token, role) ─▶ nothing, or ForbiddenError
require_feed(token, feed) ─▶ nothing, or ForbiddenError
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

from tocsin.wire.errors import ForbiddenError, InputError, UnauthorizedError

PREFIX: Final = "tocsin_"
SECRET_BYTES: Final = 32
NAME_LIMIT: Final = 128
FEED_LIMIT: Final = 800
# Whoever asks where no token is needed: what they register is nobody else's.
EVERYBODY_NAME: Final = "everybody"
DEFAULT_DATAVERSE: Final = "Default"
# The folder stays unnamed: whoever has no token yet is not told how the cluster's machine is arranged.
HOW_TO_MAKE: Final = (
    "on the cluster's machine, with its data folder: tocsin token create NAME --role ROLE --data FOLDER; then show it: "
    "export TOCSIN_TOKEN=tocsin_… for the command line, or the header Authorization: Bearer tocsin_…"
)

# What each role may do; whoever may do more may do all that stands above.
ROLES: Final[dict[str, str]] = {
    "reader": "run queries",
    "broker": "register as a broker, subscribe for it and be told, and publish to the feeds that its token names",
    "writer": "run every statement but CREATE FUNCTION … LANGUAGE PYTHON, and publish to feeds",
    "admin": "create functions in Python, stop the scripts of others, and back up the cluster",
}


class KeptToken(Protocol):
    """What a store keeps of a token."""

    @property
    def name(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def revoked_at(self) -> datetime | None: ...
    @property
    def feeds(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class Token:
    """Who is asking. `feeds`: the full names of those that a broker may publish to; a writer may to all."""

    name: str
    role: str
    feeds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MintedToken:
    """A new token. The secret is to be shown once; it stays out of `repr` so that no log keeps it."""

    name: str
    role: str
    digest: str
    secret: str = field(repr=False)
    feeds: tuple[str, ...] = ()


def mint(name: str, role: str, feeds: Iterable[str] = ()) -> MintedToken:
    """A secret nobody can guess: 32 bytes of the system's randomness."""
    if not name or len(name) > NAME_LIMIT or not name.isprintable():
        raise InputError(f"a token's name has 1 to {NAME_LIMIT} printable characters")
    if name == EVERYBODY_NAME:
        raise InputError(
            f"no token can have the name {name}", hint="it stands for all who ask without one; choose another"
        )
    if role not in ROLES:
        raise InputError(f"there is no role {role!r}", hint=f"roles: {', '.join(ROLES)}")
    named = tuple(dict.fromkeys(_feed(text.strip()) for text in feeds))
    if named and role != "broker":
        raise InputError(f"a token of the role {role} names no feeds", hint="those of the role broker may")
    secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    return MintedToken(name, role, digest(secret), secret, named)


def _feed(text: str) -> str:
    """The full name of a feed."""
    dataverse, dot, name = text.rpartition(".")
    if not name or (dot and not dataverse) or not text.isprintable() or len(text) > FEED_LIMIT:
        raise InputError(f"expected a feed's name, got {text[:80]!r}", hint="such as emergency.ReportFeed")
    return text if dot else f"{DEFAULT_DATAVERSE}.{text}"


def digest(secret: str) -> str:
    """SHA-256 in hex. No salt and no stretching: there is nothing to guess in 32 random bytes."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def secret_in(authorization: str | None) -> str:
    """The secret in an `Authorization: Bearer …` header."""
    scheme, _, secret = (authorization or "").strip().partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise UnauthorizedError("this needs a token", hint="send the header Authorization: Bearer tocsin_…")
    return secret.strip()


def check(secret: str, kept: Iterable[KeptToken]) -> Token:
    """Whose secret this is. Takes as long for a wrong one as for a right one, and no message repeats it."""
    shown = digest(secret)
    found: KeptToken | None = None
    for token in kept:
        if hmac.compare_digest(token.digest, shown):
            found = token
    if found is None:
        raise UnauthorizedError("this token is not known", hint=HOW_TO_MAKE)
    if found.revoked_at is not None:
        raise UnauthorizedError(f"the token {found.name} was revoked", hint=HOW_TO_MAKE)
    return Token(found.name, found.role, tuple(found.feeds))


def allows(token: Token, role: str) -> bool:
    """Whether the token's role may do all that `role` may."""
    ranks = list(ROLES)
    return token.role in ranks and ranks.index(token.role) >= ranks.index(role)


def require(token: Token, role: str) -> None:
    """Raises ForbiddenError unless the token's role allows all that `role` does."""
    if not allows(token, role):
        raise ForbiddenError(
            f"the token {token.name} has the role {token.role}, and this needs {role}",
            hint=f"{role}: may {ROLES[role]}",
        )


def require_feed(token: Token, feed: str) -> None:
    """Raises ForbiddenError unless the token may publish to the feed of this full name."""
    if not allows(token, "writer") and feed not in token.feeds:
        raise ForbiddenError(
            f"the token {token.name} has the role {token.role} and may not publish to {feed}",
            hint="one of the role writer may; so may one of: tocsin token create NAME --role broker "
            f"--feeds {feed} --data FOLDER",
        )
