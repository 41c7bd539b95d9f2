"""Tokens of subscribers: signed and good for a while (JWT, HS256).

A login begins a session, and every renewal of its token is of that session. A logout ends the session, and with it all
its tokens, whoever has them; sessions that were ended are remembered as long as a token of theirs may live.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import jwt

from tocsin.broker.accounts.accounts import Session
from tocsin.store.broker.interface import BrokerStore
from tocsin.store.broker.rows import SESSION_KEY
from tocsin.wire.errors import UnauthorizedError

KEY_BYTES: Final = 32
ALGORITHM: Final = "HS256"
TOKEN_LIMIT: Final = 2_000
ISSUER: Final = "tocsin"
LONGEST_US: Final = 86_400_000_000
"""How long a token may be good at most, whatever was set when it was issued."""


@dataclass(frozen=True, slots=True)
class Claims:
    """What a good token says."""

    token_id: str
    subscriber: int
    issued_us: int
    expires_us: int
    session_id: str
    began_us: int
    """When the session did: at its login."""


class SessionTokens:
    def __init__(self, store: BrokerStore, token_s: float, session_s: float, now_us: Callable[[], int]) -> None:
        self._store = store
        self._token_us = int(token_s * 1e6)
        self._session_us = int(session_s * 1e6)
        self._now_us = now_us
        self._key = b""
        self._revoked: dict[str, int] = {}
        self._forget_at_us = 0

    async def open(self) -> None:
        made = base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()
        self._key = base64.b64decode(await self._store.first_fact(SESSION_KEY, made))
        await self._forget()
        self._revoked = await self._store.revoked()

    def issue(self, subscriber: int, issued_us: int) -> tuple[str, Claims]:
        """The first token of a session, as of the time when the right to it was shown: what ends older ones ends it,
        too."""
        return self._issue(subscriber, issued_us, secrets.token_urlsafe(12), issued_us)

    def renew(self, session: Session, issued_us: int) -> tuple[str, Claims]:
        """A further token of the session; UnauthorizedError where it was ended, or has lasted as long as it may."""
        self.check_kept(session.session_id)
        if issued_us >= session.began_us + self._session_us:
            raise UnauthorizedError("this session has lasted as long as it may", hint="log in again")
        return self._issue(session.subscriber, issued_us, session.session_id, session.began_us)

    def _issue(self, subscriber: int, issued_us: int, session_id: str, began_us: int) -> tuple[str, Claims]:
        token_id, expires_us = secrets.token_urlsafe(12), issued_us + self._token_us
        claims = Claims(token_id, subscriber, issued_us, expires_us, session_id, began_us)
        said = {
            "iss": ISSUER,
            "sub": str(subscriber),
            "jti": claims.token_id,
            "iat": claims.issued_us / 1e6,
            "exp": claims.expires_us / 1e6,
            "sid": session_id,
            "auth_time": began_us / 1e6,
        }
        return jwt.encode(said, self._key, ALGORITHM), claims

    def read(self, token: str) -> Claims:
        """What a token of ours says; UnauthorizedError when it is none, or good no more."""
        if len(token) > TOKEN_LIMIT:
            raise _bad()
        try:
            # Times are checked against our own clock, below.
            said = jwt.decode(
                token,
                self._key,
                algorithms=[ALGORITHM],
                issuer=ISSUER,
                options={
                    "require": ["sub", "jti", "iat", "exp"],
                    "verify_exp": False,
                    "verify_iat": False,
                    "verify_nbf": False,
                },
            )
            # A token from before there were sessions is one of its own.
            session_id, began_us = str(said.get("sid", said["jti"])), _us(said.get("auth_time", said["iat"]))
            claims = Claims(
                str(said["jti"]), int(said["sub"]), _us(said["iat"]), _us(said["exp"]), session_id, began_us
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
        """No token of the session is good any more."""
        # From this moment on, and durably so before the answer.
        expires_us = self._revoked[session_id] = self._now_us() + LONGEST_US
        await self._store.revoke(session_id, expires_us=expires_us)
        if self._now_us() >= self._forget_at_us:
            await self._forget()

    async def _forget(self) -> None:
        """Those whose tokens have all ended by themselves, now and then: not more often than tokens end."""
        now_us = self._now_us()
        self._forget_at_us = now_us + self._token_us
        await self._store.forget_revoked(expired_before_us=now_us)
        self._revoked = {token: at_us for token, at_us in self._revoked.items() if at_us >= now_us}


def _us(moment_s: Any) -> int:
    return round(float(moment_s) * 1e6)


def _bad() -> UnauthorizedError:
    return UnauthorizedError("this token is not known", hint="log in to get one")
