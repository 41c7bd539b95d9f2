"""Bearer tokens: the client shows a secret, the server stores its digest.

mint(name, role) ─▶ secret (shown once, never stored) + digest (stored)
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
from tocsin.wire.messages import qualify

PREFIX: Final = "tocsin_"
SECRET_BYTES: Final = 32
_NAME_LIMIT: Final = 128
_FEED_LIMIT: Final = 800
# The name of clients without a token, where none is needed; no token can have it.
EVERYBODY_NAME: Final = "everybody"
# The hint does not name the data folder: a client without a token must not learn the layout of the cluster's machine.
HOW_TO_MAKE: Final = (
    "on the cluster's machine, with its data folder: tocsin token create NAME --role ROLE --data FOLDER; then show it: "
    "export TOCSIN_TOKEN=tocsin_… for the command line, or the header Authorization: Bearer tocsin_…"
)

# What each role may do; a role may also do everything that is listed above it.
ROLES: Final[dict[str, str]] = {
    "reader": "run queries",
    "broker": "register as a broker, subscribe, receive announcements, and publish to the feeds that its token names",
    "writer": "run every statement but CREATE FUNCTION … LANGUAGE PYTHON, and publish to feeds",
    "admin": "create functions in Python, stop the scripts of others, and back up the cluster",
}


class _StoredToken(Protocol):
    """The stored part of a token."""

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
    """The authenticated client. `feeds`: full names of feeds that a broker may publish to; a writer may to all."""

    name: str
    role: str
    feeds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _MintedToken:
    """A new token. Show the secret once; it is not part of `repr`, so that no log contains it."""

    name: str
    role: str
    digest: str
    secret: str = field(repr=False)
    feeds: tuple[str, ...] = ()


def mint(name: str, role: str, feeds: Iterable[str] = ()) -> _MintedToken:
    """Makes a token with an unguessable secret of 32 random bytes."""
    if not name or len(name) > _NAME_LIMIT or not name.isprintable():
        raise InputError(f"a token's name has 1 to {_NAME_LIMIT} printable characters")
    if name == EVERYBODY_NAME:
        raise InputError(
            f"no token can have the name {name}", hint="it stands for all who ask without one; choose another"
        )
    if role not in ROLES:
        raise InputError(f"there is no role {role!r}", hint=f"roles: {', '.join(ROLES)}")
    feed_names = tuple(dict.fromkeys(_feed(text.strip()) for text in feeds))
    if feed_names and role != "broker":
        raise InputError(f"a token of the role {role} names no feeds", hint="those of the role broker may")
    secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    return _MintedToken(name, role, digest(secret), secret, feed_names)


def _feed(text: str) -> str:
    """The full name of a feed."""
    dataverse, dot, name = text.rpartition(".")
    if not name or (dot and not dataverse) or not text.isprintable() or len(text) > _FEED_LIMIT:
        raise InputError(f"expected a feed's name, got {text[:80]!r}", hint="such as emergency.ReportFeed")
    return qualify(text)


def digest(secret: str) -> str:
    """SHA-256 in hex, without salt and stretching: 32 random bytes cannot be guessed."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def secret_in(authorization: str | None) -> str:
    """The secret in an `Authorization: Bearer …` header."""
    scheme, _, secret = (authorization or "").strip().partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise UnauthorizedError("this needs a token", hint="send the header Authorization: Bearer tocsin_…")
    return secret.strip()


def check(secret: str, kept: Iterable[_StoredToken]) -> Token:
    """The token of this secret. A wrong secret takes as long as a right one, and no message repeats it."""
    shown_digest = digest(secret)
    match: _StoredToken | None = None
    for token in kept:
        if hmac.compare_digest(token.digest, shown_digest):
            match = token
    if match is None:
        raise UnauthorizedError("this token is not known", hint=HOW_TO_MAKE)
    if match.revoked_at is not None:
        raise UnauthorizedError(f"the token {match.name} was revoked", hint=HOW_TO_MAKE)
    return Token(match.name, match.role, tuple(match.feeds))


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
