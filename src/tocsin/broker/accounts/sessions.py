"""Session tokens of subscribers: signed JWTs (HS256) with an expiry.

A login begins a session, and every renewal of its token belongs to that session. A logout ends the session and thereby
revokes all its tokens, including stolen ones; an ended session is remembered until its last token has expired.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import jwt

from tocsin.broker.accounts.accounts import Session
from tocsin.clock import span_us
from tocsin.store.broker.interface import BrokerStore
from tocsin.store.broker.rows import SESSION_KEY
from tocsin.wire.errors import UnauthorizedError

_KEY_BYTES: Final = 32
_ALGORITHM: Final = "HS256"
_TOKEN_LIMIT: Final = 2_000
_ISSUER: Final = "tocsin"
_LONGEST_US: Final = 86_400_000_000
"""The longest life of a token, independent of the setting at its issue."""


@dataclass(frozen=True, slots=True)
class Claims:
    """The content of a valid token."""

    token_id: str
    subscriber: int
    issued_us: int
    expires_us: int
    session_id: str
    began_us: int
    """When the session began, at its login."""


class SessionTokens:
    """Issues, checks and revokes session tokens. The store has the signing key and the ended sessions."""

    def __init__(
        self,
        store: BrokerStore,
        token_s: float,
        session_s: float,
        now_us: Callable[[], int],
        age_us: Callable[[], int] | None = None,
    ) -> None:
        """`age_us` is the time by which ended sessions are forgotten; by default `now_us`."""
        self._store = store
        self._token_us = span_us(token_s)
        self._session_us = span_us(session_s)
        self._now_us = now_us
        self._age_us = age_us or now_us
        self._latest_us = 0
        self._key = b""
        self._revoked: dict[str, int] = {}
        self._forget_at_us = 0

    async def open(self) -> None:
        new_key = base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()
        self._key = base64.b64decode(await self._store.first_fact(SESSION_KEY, new_key))
        await self._forget()
        self._revoked = await self._store.revoked_tokens()

    def issue(self, subscriber: int, issued_us: int) -> tuple[str, Claims]:
        """Issues the first token of a session. `issued_us` is when the credentials were shown, so that a change of the
        password after that moment revokes this token, too."""
        return self._issue(subscriber, issued_us, secrets.token_urlsafe(12), issued_us)

    def renew(self, session: Session, issued_us: int) -> tuple[str, Claims]:
        """Issues a further token of the session; raises UnauthorizedError if the session has ended or is too old."""
        self.check_kept(session.session_id)
        if issued_us >= session.began_us + self._session_us:
            raise UnauthorizedError("this session has lasted as long as it may", hint="log in again")
        return self._issue(session.subscriber, issued_us, session.session_id, session.began_us)

    def _issue(self, subscriber: int, issued_us: int, session_id: str, began_us: int) -> tuple[str, Claims]:
        token_id, expires_us = secrets.token_urlsafe(12), issued_us + self._token_us
        claims = Claims(token_id, subscriber, issued_us, expires_us, session_id, began_us)
        payload = {
            "iss": _ISSUER,
            "sub": str(subscriber),
            "jti": claims.token_id,
            "iat": claims.issued_us / 1e6,
            "exp": claims.expires_us / 1e6,
            "sid": session_id,
            "auth_time": began_us / 1e6,
        }
        return jwt.encode(payload, self._key, _ALGORITHM), claims

    def read(self, token: str) -> Claims:
        """The claims of a token of ours; raises UnauthorizedError if it is forged, expired or revoked."""
        if len(token) > _TOKEN_LIMIT:
            raise _bad()
        try:
            # The times are checked below, against our own clock.
            payload = jwt.decode(
                token, self._key, algorithms=[_ALGORITHM], issuer=_ISSUER,
                options={"require": ["sub", "jti", "iat", "exp"], "verify_exp": False, "verify_iat": False,
                         "verify_nbf": False},
            )  # fmt: skip
            # An old token without a session is a session of its own.
            session_id = str(payload.get("sid", payload["jti"]))
            began_us = _us(payload.get("auth_time", payload["iat"]))
            claims = Claims(
                str(payload["jti"]), int(payload["sub"]), _us(payload["iat"]), _us(payload["exp"]), session_id, began_us
            )
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError):
            raise _bad() from None
        if claims.expires_us <= self._now_us():
            raise UnauthorizedError(
                "this token has ended", hint="log in again; a fresh one is to be had before it ends"
            )
        self.check_kept(claims.session_id)
        return claims

    def check_kept(self, session_id: str) -> None:
        if session_id in self._revoked:
            raise UnauthorizedError("this token was ended by a logout", hint="log in again")

    async def end(self, session_id: str) -> None:
        """Revokes all tokens of the session."""
        # It takes effect at once in memory, and is durable before the answer.
        # A clock that was set back must not shorten it.
        self._latest_us = max(self._latest_us, self._now_us())
        expires_us = self._revoked[session_id] = self._latest_us + _LONGEST_US
        await self._store.revoke(session_id, expires_us=expires_us)
        if self._age_us() >= self._forget_at_us:
            await self._forget()

    async def _forget(self) -> None:
        """Forgets sessions whose tokens have all expired. It runs at most once per token lifetime."""
        now_us = self._age_us()
        self._latest_us = max(self._latest_us, now_us)
        self._forget_at_us = now_us + self._token_us
        await self._store.forget_revoked(expired_before_us=now_us)
        self._revoked = {session_id: until_us for session_id, until_us in self._revoked.items() if until_us >= now_us}


def _us(moment_s: Any) -> int:
    return round(float(moment_s) * 1e6)


def _bad() -> UnauthorizedError:
    return UnauthorizedError("this token is not known", hint="log in to get one")
