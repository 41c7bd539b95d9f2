"""HTTP requests to one broker, with a valid token and with retries while the broker is away.

All requests are safe to repeat, so a program does not notice a short absence of its broker. Only a broker that was
reached before is waited for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from ssl import SSLContext
from typing import Any, Final
from urllib.parse import quote, urlsplit

import aiohttp
import orjson

from tocsin.rules.backoff import BackOff
from tocsin.wire import errors
from tocsin.wire.accounts import Group, GroupPage
from tocsin.wire.answers import LoginAnswer
from tocsin.wire.subscriber import Credentials

_CONNECT_S: Final = 10.0
_ANSWER_S: Final = 60.0
_RENEW_SHARE: Final = 0.75  # a token is renewed after this share of its life
_SHORTEST_LIFE_S: Final = 10.0


class NoBrokerError(errors.UnavailableError):
    """Nothing listens at the address, or it is not a Tocsin broker."""

    code = "no_broker"


def is_retryable(error: errors.TocsinError) -> bool:
    """Whether the same request may succeed later."""
    return isinstance(error, errors.UnavailableError | errors.StorageFullError) or (
        isinstance(error, errors.LimitError) and error.status == 429
    )


class BrokerSession:
    """The HTTP session and token of a client. `patience_s`: how long a request is retried while a broker that was
    reached before does not answer."""

    def __init__(
        self,
        url: str,
        credentials: Credentials | None,
        *,
        token: str | None = None,
        patience_s: float = 15.0,
        ssl: SSLContext | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self.url = _check_url(url)
        self._credentials = credentials
        self._token = None if token is None else _check_token(token)
        self._renew_at_s = 0.0  # The expiry of a given token becomes known with its first renewal, so renew it at once.
        self._patience_s = patience_s
        self._ssl = ssl
        self._renewing = asyncio.Lock()
        self._session: aiohttp.ClientSession | None = None
        self._reached = False
        self.who: LoginAnswer | None = None

    def open(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
        connector = aiohttp.TCPConnector(ssl=self._ssl) if self._ssl is not None else None
        self._session = aiohttp.ClientSession(
            headers={"User-Agent": "tocsin-sdk"}, timeout=timeout, connector=connector
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    # --- tokens

    async def log_in(self) -> LoginAnswer:
        """Gets a new token for the credentials."""
        if self._credentials is None:
            raise errors.UnauthorizedError("the token is no longer good", hint="log in with user and password")
        answer = await self.call("POST", "/v1/login", self._credentials.to_json(), token=None)
        return self._keep(LoginAnswer.parse(answer))

    async def token(self) -> str:
        """A valid token: renewed before its expiry, or from a new login."""
        async with self._renewing:
            if self._token is None:
                await self.log_in()
            elif self._clock() >= self._renew_at_s:
                try:
                    self._keep(LoginAnswer.parse(await self.call("POST", "/v1/token", token=self._token)))
                except errors.UnauthorizedError:
                    await self.log_in()
            assert self._token is not None
            return self._token

    async def keep_renewed(self) -> None:
        """Renews the token until cancelled, so that it does not expire while no request is made."""
        pauses = BackOff()
        while True:
            await asyncio.sleep(max(self._renew_at_s - self._clock(), 0.0))
            try:
                await self.token()
                pauses.reset()
            except errors.TocsinError as error:
                if not is_retryable(error):
                    return  # The next request that needs the token gets the error.
                await asyncio.sleep(pauses.next_s())

    def refuse(self, token: str) -> None:
        """The broker refused this token, so the next request needs another."""
        if token == self._token and self._credentials is not None:
            self._token = None

    def become(self, credentials: Credentials) -> None:
        """Uses another password from now on; the present token is no longer valid."""
        self._credentials, self._token = credentials, None

    @property
    def can_log_in(self) -> bool:
        return self._credentials is not None

    def _keep(self, answer: LoginAnswer) -> LoginAnswer:
        self.who, self._token = answer, answer.token
        # A wrong clock must cause neither endless renewals nor none at all.
        life_s = max((answer.expires_at - datetime.now(UTC)).total_seconds(), _SHORTEST_LIFE_S)
        self._renew_at_s = self._clock() + life_s * _RENEW_SHARE
        return answer

    # --- requests

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        answer_s: float = _ANSWER_S,
    ) -> Any:
        """Sends a request as the subscriber. If the broker refuses the token, it is replaced once."""
        token = await self.token()
        try:
            return await self.call(method, path, body, token=token, params=params, headers=headers, answer_s=answer_s)
        except errors.UnauthorizedError:
            if self._credentials is None:
                raise
            self.refuse(token)
        token = await self.token()
        return await self.call(method, path, body, token=token, params=params, headers=headers, answer_s=answer_s)

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        answer_s: float = _ANSWER_S,
    ) -> Any:
        """The JSON of the answer. All requests are safe to repeat, so they are retried."""
        pauses, until_s = BackOff(), time.monotonic() + self._patience_s
        while True:
            try:
                return await self._send_once(
                    method, path, body, token=token, params=params, headers=headers, answer_s=answer_s
                )
            except errors.TocsinError as error:
                pause_s = pauses.next_s(float(error.details.get("retry_after_s") or 0.0))
                if not self._reached or not is_retryable(error) or time.monotonic() + pause_s > until_s:
                    raise
            await asyncio.sleep(pause_s)

    async def _send_once(
        self,
        method: str,
        path: str,
        body: Any,
        *,
        token: str | None,
        params: Mapping[str, str] | None,
        headers: Mapping[str, str] | None,
        answer_s: float,
    ) -> Any:
        """Sends the request once."""
        own_headers: dict[str, str] = {"Content-Type": "application/json"} if body is not None else {}
        if token is not None:
            own_headers["Authorization"] = f"Bearer {token}"
        data = body if body is None or isinstance(body, bytes) else _encode_json(body)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=answer_s)
        try:
            async with self.session.request(
                method,
                f"{self.url}{path}",
                data=data,
                params=params,
                headers={**own_headers, **(headers or {})},
                timeout=timeout,
            ) as response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            raise self.unreachable(exc) from None
        return self._answer(response, content)

    def _answer(self, response: aiohttp.ClientResponse, content: bytes) -> Any:
        """The JSON of a successful answer; raises the broker's error otherwise."""
        try:
            answer = orjson.loads(content)
            if response.status < 400 or (response.status == 422 and "accepted" in answer):
                self._reached = True
                return answer
            error = errors.error_of(answer["error"], response.status)
        except (ValueError, TypeError, KeyError):
            raise NoBrokerError(
                f"what answers at {self.url} is not a Tocsin broker (status {response.status})"
            ) from None
        self._reached = True
        retry_after = response.headers.get("Retry-After", "")
        if retry_after.isdecimal():
            error.details.setdefault("retry_after_s", float(retry_after))
        raise error

    @property
    def session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise errors.InputError("the client is not open", hint="use it as: async with Client(…) as client")
        return self._session

    def unreachable(self, exc: BaseException) -> errors.TocsinError:
        if isinstance(exc, aiohttp.InvalidURL):
            return errors.InputError(f"{self.url} is not an address", hint="for example http://127.0.0.1:8480")
        if isinstance(exc, aiohttp.ClientConnectorError):
            return NoBrokerError(f"no broker answers at {self.url}", hint='"tocsin broker" starts one')
        return errors.UnavailableError(f"the connection to {self.url} broke: {str(exc) or type(exc).__name__}")


def quote_path(name: str) -> str:
    """A name, percent-encoded as part of a path."""
    return quote(name, safe="")


async def whole_group(ask: Callable[..., Awaitable[Any]], name: str) -> Group:
    """The group with the members of all pages."""
    path = f"/v1/groups/{quote_path(name)}"
    members: list[str] = []
    params: dict[str, str] = {}
    while True:
        page = GroupPage.parse(await ask("GET", path, params=params))
        members += page.members
        if page.next is None:
            return Group(page.name, page.created_at, tuple(members), page.subscriptions)
        params = {"after": page.next}


def _check_url(url: str) -> str:
    """The URL without a trailing slash, `http://` where it has no scheme; raises InputError if it is not a URL."""
    address = (url if "://" in url else f"http://{url}").rstrip("/")
    try:
        parts = urlsplit(address)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise errors.InputError(f"{url} is not an address", hint="for example http://127.0.0.1:8480")
    return address


def _check_token(token: str) -> str:
    if not token or not token.isascii() or not token.isprintable():
        raise errors.InputError("this is not a token")
    return token


def _encode_json(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError as error:
        raise errors.InputError(f"this cannot be written as JSON: {error}") from None
