"""The command line's connection to a cluster: sends scripts and requests, yields rows and outcomes as they arrive.

A script gets an id from the client, so that Ctrl-C can cancel the script at the cluster and does not only close the
connection.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self

import aiohttp

from tocsin.wire.errors import InputError, TocsinError, UnavailableError, error_of

DEFAULT_URL: Final = "http://127.0.0.1:8470"

_CANCEL_S = 2.0
_CONNECT_S = 10.0
_ROW = b',"row":'


class NoClusterError(UnavailableError):
    """No cluster answers at the address, or another server does."""

    code = "no_cluster"


@dataclass(frozen=True, slots=True)
class RowReceived:
    """One row of a query, as the cluster wrote it."""

    statement: int
    json: bytes

    def value(self) -> Any:
        return json.loads(self.json)


@dataclass(frozen=True, slots=True)
class StatementDone:
    """A statement that has finished, with the summary that the cluster returned."""

    statement: int
    kind: str
    summary: dict[str, Any]

    @property
    def has_rows(self) -> bool:
        return "rows" in self.summary


@dataclass(frozen=True, slots=True)
class PostAnswer:
    """The answer to a posted body."""

    status: int
    content: bytes
    error: TocsinError
    """The error that the content describes if the status is not a success."""
    retry_after_s: float


class ClusterConnection:
    """A connection to one cluster; a context manager."""

    def __init__(self, url: str = DEFAULT_URL, token: str | None = None) -> None:
        self.url = (url if "://" in url else f"http://{url}").rstrip("/")
        self._token = token

    async def __aenter__(self) -> Self:
        headers = {"User-Agent": "tocsin-sql"}
        if self._token is not None:
            if not self._token.isascii() or not self._token.isprintable():
                raise InputError("this is not a token", hint='tokens look like "tocsin_…"')
            headers["Authorization"] = f"Bearer {self._token}"
        # No total timeout: the cluster limits how long a script runs.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
        self._session = aiohttp.ClientSession(headers=headers, timeout=timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def run(
        self, script: str, *, timeout_s: float | None = None
    ) -> AsyncGenerator[RowReceived | StatementDone, None]:
        """Runs the script. Raises the error of the first statement that fails; leaving early cancels the script."""
        identity = secrets.token_hex(8)
        headers = {
            "Accept": "application/x-ndjson",
            "Content-Type": "text/plain; charset=utf-8",
            "Tocsin-Request-Id": identity,
        }
        params = {} if timeout_s is None else {"timeout": str(timeout_s)}
        ended = False
        try:
            async with self._session.post(
                f"{self.url}/v1/statements", params=params, headers=headers, data=script.encode()
            ) as response:
                if response.status != 200 or response.content_type != "application/x-ndjson":
                    ended = True
                    raise self._error_in(await response.read(), response.status)
                async for line in _lines(response.content.iter_any()):
                    yield _event(line)
                ended = True
        except aiohttp.ClientError as exc:
            ended = isinstance(exc, aiohttp.ClientConnectorError | aiohttp.InvalidURL)
            raise self._unreachable(exc) from None
        except TocsinError:
            ended = True
            raise
        finally:
            if not ended:
                await self._cancel(identity)

    async def reach(self) -> None:
        """Raises `NoClusterError` unless a cluster answers."""
        try:
            async with self._session.get(f"{self.url}/healthz") as response:
                if response.content_type != "application/json":
                    raise self._error_in(await response.read(), response.status)
        except aiohttp.ClientError as exc:
            raise self._unreachable(exc) from None

    async def post(self, path: str, body: bytes, *, headers: dict[str, str], timeout_s: float) -> PostAnswer:
        """Posts the bytes and returns the answer. Raises only if there is none within `timeout_s`."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=timeout_s)
        try:
            async with self._session.post(f"{self.url}{path}", data=body, headers=headers, timeout=timeout) as answer:
                content = await answer.read()
        except aiohttp.ClientError as exc:
            raise self._unreachable(exc) from None
        after = answer.headers.get("Retry-After", "")
        error = self._error_in(content, answer.status)
        return PostAnswer(answer.status, content, error, float(after) if after.isdecimal() else 0.0)

    async def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Sends a request of the cluster's API and returns its answer."""
        try:
            async with self._session.request(method, f"{self.url}{path}", json=body) as answer:
                content = await answer.read()
        except aiohttp.ClientError as exc:
            raise self._unreachable(exc) from None
        if answer.status != 200 or answer.content_type != "application/json":
            raise self._error_in(content, answer.status)
        fields: dict[str, Any] = json.loads(content)
        return fields

    def _unreachable(self, exc: aiohttp.ClientError) -> TocsinError:
        if isinstance(exc, aiohttp.ClientConnectorError):
            return NoClusterError(f'no cluster answers at {self.url}: start one with "tocsin up"')
        if isinstance(exc, aiohttp.InvalidURL):
            return InputError(f"{self.url} is not an address", hint=f"for example {DEFAULT_URL}")
        return UnavailableError(f"the connection to {self.url} broke: {str(exc) or type(exc).__name__}")

    async def _cancel(self, identity: str) -> None:
        """Tells the cluster to cancel the script: behind a proxy it may not see that the connection closed."""
        with suppress(aiohttp.ClientError, TimeoutError):
            async with asyncio.timeout(_CANCEL_S), self._session.delete(f"{self.url}/v1/statements/{identity}"):
                pass

    def _error_in(self, body: bytes, status: int) -> TocsinError:
        try:
            return error_of(json.loads(body)["error"])
        except (ValueError, TypeError, KeyError):
            return NoClusterError(f"what answers at {self.url} is not a Tocsin cluster (status {status})")


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yields the lines of a stream; a line may be of any length."""
    pending = bytearray()
    async for chunk in chunks:
        first, *rest = chunk.split(b"\n")
        pending += first
        for part in rest:
            yield bytes(pending)
            pending = bytearray(part)
    if pending:
        raise UnavailableError("the cluster's answer ended half-way")


def _event(line: bytes) -> RowReceived | StatementDone:
    head, row, tail = line.partition(_ROW)
    number = head.removeprefix(b'{"statement":')
    if row and number.isdigit():
        # Do not parse the row: parsed numbers could lose digits.
        return RowReceived(int(number), tail[:-1])
    fields = json.loads(line)
    if "error" in fields:
        raise error_of(fields["error"])
    return StatementDone(fields.pop("statement"), fields.pop("kind"), fields)
