"""Fetches the newest answer of a URL: with conditional requests, a body limit and respect for Retry-After.

The address belongs to others: its answer is limited in size and time, the address guard also checks redirects, and no
error shows the URL, which may contain a secret.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Final, Self

import aiohttp
from aiohttp import hdrs

from tocsin.cluster.feeds.limits import USUAL_LIMITS, FeedLimits
from tocsin.cluster.feeds.options import UrlOptions
from tocsin.serving.address_guard import UNGUARDED, AddressGuard, PrivateAddressError
from tocsin.wire.version import version

_CONNECT_TIMEOUT_S: Final = 10.0
_REDIRECTS: Final = 5
_RETRY_AFTER_LIMIT_S: Final = 86_400.0
_VALIDATOR_CHARACTERS: Final = 4_000
_ACCEPT: Final = {
    "json": "application/json, application/x-ndjson, */*;q=0.5",
    "geojson": "application/geo+json, application/json, */*;q=0.5",
    "rss": "application/rss+xml, application/atom+xml, application/xml, text/xml, */*;q=0.5",
}


class FetchError(Exception):
    """There is no usable answer. `what` is a short kind of trouble, `retry_after_s` the wish of the server."""

    def __init__(self, what: str, detail: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(f"{what}: {detail}" if detail else what)
        self.what = what
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class UrlAnswer:
    body: bytes
    validators: dict[str, str]
    """Request headers that ask the server whether its answer has changed."""


class UrlClient:
    """A client for one URL; an async context manager."""

    def __init__(self, polling: UrlOptions, guard: AddressGuard = UNGUARDED, limits: FeedLimits = USUAL_LIMITS) -> None:
        self._guard = guard
        self._polling = polling
        self._timeout_s = limits.poll_timeout_s
        self._body_limit_bytes = limits.poll_body_bytes
        self._validators: dict[str, str] = {}
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=self._guard.connector(),
            timeout=aiohttp.ClientTimeout(total=self._timeout_s, sock_connect=_CONNECT_TIMEOUT_S),
            headers={
                hdrs.USER_AGENT: f"tocsin/{version()}",
                hdrs.ACCEPT: _ACCEPT[self._polling.format],
                hdrs.ACCEPT_ENCODING: "gzip, deflate",
            },
            # Ignore cookies: a server that is polled again and again must not be able to store state in the client.
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def fetch(self) -> UrlAnswer | None:
        """Returns the answer, or None if it has not changed since `done`. FetchError says why there is none."""
        try:
            async with self._session.get(
                self._polling.url, headers=self._validators, max_redirects=_REDIRECTS
            ) as response:
                return await self._read(response)
        except TimeoutError:
            raise FetchError("did not answer in time", f"{self._timeout_s:g} s") from None
        except aiohttp.TooManyRedirects:
            raise FetchError("redirects too often", f"more than {_REDIRECTS} times") from None
        except aiohttp.ClientPayloadError as error:
            raise FetchError("broke off its answer", str(error)) from None
        except aiohttp.ClientConnectorCertificateError as error:
            raise FetchError("shows a bad certificate", str(error.certificate_error)) from None
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, PrivateAddressError):
                raise FetchError("is not allowed", error.os_error.strerror or "") from None
            raise FetchError("cannot be reached", str(error.os_error.strerror or error.os_error)) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # Do not show the error's text: it may contain the URL, and that may contain a secret.
            raise FetchError("cannot be asked", type(error).__name__) from None

    async def _read(self, response: aiohttp.ClientResponse) -> UrlAnswer | None:
        if response.status == 304 and self._validators:
            return None
        if response.status not in (200, 203):
            raise FetchError(f"answered {response.status}", retry_after_s=_retry_after_s(response))
        too_large = FetchError("answered too much", f"more than {self._body_limit_bytes} bytes")
        if (response.content_length or 0) > self._body_limit_bytes:
            raise too_large
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > self._body_limit_bytes:
                raise too_large
        return UrlAnswer(bytes(body), _validators(response))

    def note_durable(self, fetched: UrlAnswer) -> None:
        """Records that all items of this answer are durable. The next requests ask only for a newer answer."""
        self._validators = fetched.validators


def _validators(response: aiohttp.ClientResponse) -> dict[str, str]:
    headers = {
        hdrs.IF_NONE_MATCH: response.headers.get(hdrs.ETAG, ""),
        hdrs.IF_MODIFIED_SINCE: response.headers.get(hdrs.LAST_MODIFIED, ""),
    }
    return {name: value for name, value in headers.items() if value and len(value) <= _VALIDATOR_CHARACTERS}


def _retry_after_s(response: aiohttp.ClientResponse) -> float:
    header = response.headers.get(hdrs.RETRY_AFTER, "").strip()
    if header.isascii() and header.isdigit():
        return min(float(header), _RETRY_AFTER_LIMIT_S)
    try:
        until = parsedate_to_datetime(header)
    except (ValueError, TypeError, IndexError, OverflowError):
        return 0.0
    left_s = (until.replace(tzinfo=until.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return min(max(left_s, 0.0), _RETRY_AFTER_LIMIT_S)
