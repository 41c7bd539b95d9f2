"""The URL adapter: polls a URL periodically, and takes each item of the answers once.

An answer repeats items of earlier answers, so the poller remembers the identity of each item. The identity becomes
durable in one write with the record; otherwise a crash in between would lose an item or take it twice. The address
belongs to others: its answer is limited in size and time, the address guard also checks redirects, and no error shows
the URL, which may contain a secret.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import islice
from random import Random
from types import TracebackType
from typing import Any, Final, Protocol, Self

import aiohttp
import structlog
from aiohttp import hdrs

from tocsin.cluster.catalog.entries import FeedEntry
from tocsin.cluster.feeds.adapters.seen_items import SeenItems, mark
from tocsin.cluster.feeds.limits import USUAL_LIMITS, FeedLimits
from tocsin.cluster.feeds.metrics import FeedCounts
from tocsin.cluster.feeds.options import UrlOptions
from tocsin.pipeline.sources.decoder import DecodedRecord
from tocsin.pipeline.sources.items import items
from tocsin.pipeline.sources.polled_items import RecordDecoder
from tocsin.rules.backoff import BackOff
from tocsin.serving.address_guard import UNGUARDED, AddressGuard, PrivateAddressError
from tocsin.wire.errors import ConflictError, TocsinError
from tocsin.wire.version import version

_FIRST_BACK_OFF_S: Final = 5.0
_LAST_BACK_OFF_S: Final = 900.0
_LEAST_PAUSE_S: Final = 1.0
_CONNECT_TIMEOUT_S: Final = 10.0
_REDIRECTS: Final = 5
_RETRY_AFTER_LIMIT_S: Final = 86_400.0
_VALIDATOR_CHARACTERS: Final = 4_000
_ACCEPT: Final = {
    "json": "application/json, application/x-ndjson, */*;q=0.5",
    "geojson": "application/geo+json, application/json, */*;q=0.5",
    "rss": "application/rss+xml, application/atom+xml, application/xml, text/xml, */*;q=0.5",
}


_log = structlog.get_logger()


class FetchError(Exception):
    """There is no usable answer. `what` is a short kind of trouble, `retry_after_s` the wish of the server."""

    def __init__(self, what: str, detail: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(f"{what}: {detail}" if detail else what)
        self.what = what
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class _UrlAnswer:
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

    async def fetch(self) -> _UrlAnswer | None:
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

    async def _read(self, response: aiohttp.ClientResponse) -> _UrlAnswer | None:
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
        return _UrlAnswer(bytes(body), _validators(response))

    def note_durable(self, fetched: _UrlAnswer) -> None:
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


class _ItemReceiver(Protocol):
    """Takes the items: a started feed."""

    entry: FeedEntry

    async def until_open(self) -> None:
        """Returns when the feed accepts records."""

    async def take(self, decoded: Sequence[DecodedRecord], seen: Sequence[bytes]) -> None:
        """Makes records and marks of items durable in one write. Raises ConflictError while the feed is closed."""


def poll_back_off(period_s: float, rng: Random | None = None) -> BackOff:
    """The pauses of a poller: at most the period or 15 minutes, the longer of both."""
    first_s, last_s = min(period_s, _FIRST_BACK_OFF_S), max(period_s, _LAST_BACK_OFF_S)
    return BackOff(first_s, last_s, rng, jitter=(1.0, 1.25))


class UrlPoller:
    """Polls for one feed from `start` to `close`, one request at a time."""

    def __init__(
        self,
        taker: _ItemReceiver,
        polling: UrlOptions,
        seen: SeenItems,
        judge: RecordDecoder,
        counts: FeedCounts,
        *,
        rng: Random | None = None,
        guard: AddressGuard = UNGUARDED,
        limits: FeedLimits = USUAL_LIMITS,
    ) -> None:
        self._items_per_write = limits.items_per_write
        self._counts = counts
        self._name = taker.entry.name
        self._taker = taker
        self._polling = polling
        self._seen = seen
        self._judge = judge
        self._back_off = poll_back_off(polling.period_s, rng)
        self._fetcher = UrlClient(polling, guard, limits)
        self._trouble = ""
        self._closing = False
        self._taking: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    @property
    def open(self) -> None:
        """None: nobody connects to a poller."""

    async def close(self) -> None:
        """Ends polling. A write that is under way finishes first."""
        self._closing = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._taking is not None:
            await asyncio.gather(self._taking, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._fetcher:
            while True:
                await self._taker.until_open()
                began_s = loop.time()
                pause_s = await self._poll()
                if pause_s is None:
                    # The period counts from start to start, but a slow server gets a moment of rest.
                    left_s = self._polling.period_s - (loop.time() - began_s)
                    pause_s = max(left_s, min(self._polling.period_s, _LEAST_PAUSE_S))
                await asyncio.sleep(pause_s)

    async def _poll(self) -> float | None:
        """Polls once. Returns None, or how long to wait after a failure."""
        self._counts.polls += 1
        try:
            fetched = await self._fetcher.fetch()
            if fetched is None:
                self._counts.polls_unchanged += 1
            else:
                # A STOP does not cancel the write: records that are being written are taken, and land.
                self._taking = asyncio.create_task(self._take(fetched))
                await asyncio.shield(self._taking)
        except ConflictError:
            return 0.0  # the feed is stopping; if it opens again, the next poll brings the rest
        except FetchError as error:
            return self._note_failure(error.what, str(error), error.retry_after_s)
        except TocsinError as error:
            # The answer is unreadable, or the log cannot take records now.
            return self._note_failure(error.code, str(error), float(error.details.get("retry_after_s", 0.0)))
        except Exception as error:
            if not self._trouble:
                self._write_log("error", "polling failed", exc_info=error)
            return self._note_failure(type(error).__name__, str(error), 0.0)
        self._note_success()
        return None

    async def _take(self, fetched: _UrlAnswer) -> None:
        marks, fresh = await asyncio.to_thread(self._unseen, fetched.body)
        chunks = self._chunks(fetched.body, fresh)
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
            if self._closing:
                return  # the rest comes when the feed starts again
            decoded = await asyncio.to_thread(self._judge, [item for _, item in chunk])
            await self._taker.take(decoded, [marks[index] for index, _ in chunk])
        self._counts.taken_bytes += len(fetched.body) if fresh else 0
        await asyncio.to_thread(self._seen.note_answer, marks)
        self._fetcher.note_durable(fetched)

    def _unseen(self, body: bytes) -> tuple[list[bytes], set[int]]:
        """Returns the marks of all items, and the indexes of the items that were never taken."""
        marks = [mark(identity) for identity, _ in items(body, self._polling.format)]
        return marks, set(self._seen.unseen(marks))

    def _chunks(self, body: bytes, indexes: set[int]) -> Iterator[list[tuple[int, dict[str, Any]]]]:
        """Yields the items at these indexes, chunk by chunk. It parses the body a second time, because all items at
        once would take too much memory."""
        if not indexes:
            return
        numbered = enumerate(record for _, record in items(body, self._polling.format))
        unseen = (item for item in numbered if item[0] in indexes)
        while chunk := list(islice(unseen, self._items_per_write)):
            yield chunk

    # ------------------------------------------------------------ success and failure

    def _note_failure(self, what: str, reason: str, retry_after_s: float) -> float:
        self._counts.polls_failed += 1
        if what != self._trouble:
            # Log a trouble once, not at each poll.
            self._trouble = what
            self._write_log("warning", "polling fails", host=self._polling.host, reason=reason)
        return self._back_off.next_s(retry_after_s)

    def _note_success(self) -> None:
        if self._trouble:
            self._write_log("info", "polling works again", host=self._polling.host, failures=self._back_off.failures)
        self._trouble = ""
        self._back_off.reset()

    def _write_log(self, level: str, event: str, **about: Any) -> None:
        with suppress(Exception):  # an error in logging must not end the polling
            getattr(_log, level)(event, feed=self._name, **about)
