"""`tocsin publish`: sends records from a file or a pipe to a feed, in batches that are safe to repeat.

Each batch has an idempotency key, so a retry stores nothing twice. The command gives up well within the time for which
the cluster remembers a key.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TextIO
from urllib.parse import quote

from cyclopts import Parameter

from tocsin.cli.client import DEFAULT_URL, ClusterConnection
from tocsin.cli.options import ClusterToken, ClusterUrl
from tocsin.cli.output import progress_bar, safe
from tocsin.cli.records import RecordCutter, RecordFormat, cutter
from tocsin.rules.backoff import BackOff
from tocsin.wire.errors import InputError, TocsinError, UnavailableError

_BATCH_LIMIT: Final = 100_000  # the most records that the cluster accepts in one body
_BODY_BYTES: Final = 8 << 20  # a batch of long records is sent at this size
_READ_BYTES: Final = 1 << 18
_READ_AHEAD: Final = 4
_GZIP: Final = b"\x1f\x8b"
_QUIET_S: Final = 0.2  # a pipe that is silent for this long gets its records sent
_RETRIED: Final = frozenset({429, 502, 503, 504, 507})
# Well within the time for which the cluster remembers a key, so that a late retry is still harmless.
_PATIENCE_S: Final = 120.0
_ANSWER_S: Final = 60.0
_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 10.0

_OnProgress = Callable[[int, int], None]


def publish(
    feed: Annotated[str, Parameter(help="The feed: dataverse.feed, or the name of a feed in the dataverse Default.")],
    file: Annotated[
        Path | None,
        Parameter(allow_leading_hyphen=True, help="The file with the records (default, and -: standard input)."),
    ] = None,
    /,
    *,
    format: Annotated[  # noqa: A002 - the flag is called so
        RecordFormat | None,
        Parameter(help="The format of the records; the command fails if the feed takes another one."),
    ] = None,
    batch: Annotated[int, Parameter(help="The number of records in one request.")] = 1_000,
    visible: Annotated[bool, Parameter(negative="", help="Wait until queries see the records.")] = False,
    url: ClusterUrl = None,
    token: ClusterToken = None,
) -> int:
    """Send records to a feed, in the feed's own format.

    The exit status is 1 if a record was not accepted, and 2 if no cluster answers."""
    if not 1 <= batch <= _BATCH_LIMIT:
        raise InputError(f"--batch: must be from 1 to {_BATCH_LIMIT}, got {batch}")
    with _open_input(file) as descriptor:
        client = ClusterConnection(url or DEFAULT_URL, token)
        return asyncio.run(publish_input(client, feed, descriptor, form=format, batch=batch, visible=visible))


async def publish_input(
    connecting: ClusterConnection, feed: str, descriptor: int, *, form: RecordFormat | None, batch: int, visible: bool
) -> int:
    """Sends the records of an open file or pipe, and reports how many were accepted. Returns the exit status."""
    async with connecting as client:
        await client.reach()
        options = await client.call("GET", f"/v1/feeds/{quote(feed, safe='')}")
        if form not in (None, options["format"]):
            raise InputError(
                f"--format: the feed {feed} takes {options['format']}, not {form}",
                hint="send the records in the feed's format, or CREATE FEED with another one",
            )
        with _progress(feed, descriptor) as on_progress:
            publisher = RecordPublisher(
                client, feed, batch=batch, header=bool(options.get("header")), err=sys.stderr, on_progress=on_progress
            )
            began_s = time.monotonic()
            try:
                await publisher.publish(_chunks(descriptor), cutter(options["format"], options.get("quote", '"')))
                if visible:
                    await publisher.wait_until_visible()
            except TocsinError:
                if publisher.accepted:
                    sys.stderr.write(f"{publisher.accepted:,} records were acknowledged before this:\n")
                raise
            except asyncio.CancelledError:
                sys.stderr.write(
                    f"\ninterrupted: {publisher.accepted:,} records were acknowledged, {publisher.rejected:,} rejected;"
                    " the last batch may be incomplete\n"
                )
                raise
            taken_s = time.monotonic() - began_s
    rate = (publisher.accepted + publisher.rejected) / max(taken_s, 1e-3)
    sys.stdout.write(
        f"{safe(feed)}: {publisher.accepted:,} accepted, {publisher.rejected:,} rejected ({rate:,.0f} records/s)\n"
    )
    if publisher.unfound:
        sys.stderr.write(
            f"{publisher.unfound:,} records were neither accepted nor rejected: the feed found no record in them\n"
        )
    return 1 if publisher.rejected or publisher.unfound else 0


@dataclass(frozen=True, slots=True)
class _RecordBatch:
    body: bytes
    records: int


class RecordPublisher:
    """Sends batches one after the other, so that the last of several records with one key wins."""

    def __init__(
        self,
        client: ClusterConnection,
        feed: str,
        *,
        batch: int = 1_000,
        header: bool = False,
        err: TextIO,
        on_progress: _OnProgress = lambda _records, _size_bytes: None,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
        patience_s: float = _PATIENCE_S,
        body_bytes: int = _BODY_BYTES,
    ) -> None:
        self._client = client
        self._path = f"/v1/feeds/{quote(feed, safe='')}"
        self._limit = batch
        self._wants_header = header
        self._header: bytes | None = None
        self._err = err
        self._on_progress = on_progress
        self._pause = pause
        self._patience_s = patience_s
        self._body_bytes = body_bytes
        self._run = secrets.token_hex(16)
        self._sent = 0
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._acknowledged: tuple[_RecordBatch, str] | None = None
        """The last batch that was acknowledged, and its key."""
        self.accepted = 0
        self.rejected = 0
        self.unfound = 0
        """Records that the cluster has neither accepted nor rejected."""

    async def publish(self, chunks: AsyncIterator[bytes | None], cut: RecordCutter) -> None:
        """Sends the records of a text that arrives in chunks; a chunk is None after a pause."""
        try:
            async for chunk in chunks:
                if chunk is None:
                    await self._flush()
                    continue
                for record in cut.feed(chunk):
                    await self._add(record)
            for record in cut.finish():
                await self._add(record)
        except InputError:
            # Send the records before the place that cannot be read.
            await self._flush()
            raise
        await self._flush()

    async def wait_until_visible(self) -> None:
        """Returns when queries see all acknowledged records."""
        if self._acknowledged is not None:
            # Repeat the last batch under its key: it has no second effect, and it lands after all earlier ones.
            await self._send(*self._acknowledged, visible=True)

    async def _add(self, record: bytes) -> None:
        if self._wants_header and self._header is None:
            self._header = record
            return
        self._waiting.append(record)
        self._waiting_bytes += len(record)
        if len(self._waiting) >= self._limit or self._waiting_bytes >= self._body_bytes:
            await self._flush()

    async def _flush(self) -> None:
        if not self._waiting:
            return
        lines = self._waiting if self._header is None else [self._header, *self._waiting]
        batch = _RecordBatch(b"\n".join(lines) + b"\n", len(self._waiting))
        self._waiting, self._waiting_bytes = [], 0
        self._sent += 1
        key = f"{self._run}-{self._sent}"
        answer = await self._send(batch, key)
        if "error" not in answer:
            self._acknowledged = batch, key
        self._report(answer, batch)

    async def _send(self, batch: _RecordBatch, key: str, *, visible: bool = False) -> Mapping[str, Any]:
        """Sends a batch and returns the answer. Repeats it under its key while the cluster is away or overloaded."""
        deadline_s = time.monotonic() + self._patience_s
        back_off = BackOff(_PAUSE_S, _LONGEST_PAUSE_S)
        path = f"{self._path}?wait=visible" if visible else self._path
        while True:
            retry_after_s = 0.0
            try:
                answered = await self._client.post(
                    path, batch.body, headers={"Idempotency-Key": key}, timeout_s=_ANSWER_S
                )
            except UnavailableError as error:
                failure: TocsinError = error
            else:
                fields: Mapping[str, Any] = json.loads(answered.content) if answered.status in (200, 422) else {}
                if "accepted" in fields:
                    return fields
                failure, retry_after_s = answered.error, answered.retry_after_s
                if answered.status == 400 and failure.code == InputError.code:
                    # The body contains no record. That is an error of this batch only: go on with the next one.
                    return {"accepted": 0, "rejected": [], "rejected_in_all": batch.records, "error": failure.message}
                if answered.status not in _RETRIED:
                    raise failure
            wait_s = back_off.next_s(retry_after_s)
            if time.monotonic() + wait_s > deadline_s:
                raise failure
            await self._pause(wait_s)

    def _report(self, answer: Mapping[str, Any], batch: _RecordBatch) -> None:
        first = self.accepted + self.rejected
        listed = answer["rejected"]
        rejected = answer.get("rejected_in_all", len(listed))
        for rejection in listed:
            field = f"{rejection['field']}: " if rejection["field"] else ""
            record = first + rejection["index"] + 1
            self._err.write(f"rejected record {record}: {safe(field + rejection['reason'])}\n")
        if rejected > len(listed):
            reason = f": {safe(answer['error'])}" if "error" in answer else ""
            more = "more " if listed else ""
            span = f"records {first + 1} to {first + rejected}" if not listed else f"{rejected - len(listed):,} {more}"
            self._err.write(f"rejected {span.rstrip()}{reason}\n")
        self.accepted += answer["accepted"]
        self.rejected += rejected
        self.unfound += max(0, batch.records - answer["accepted"] - rejected)
        self._on_progress(self.accepted + self.rejected, len(batch.body))


# ---------------------------------------------------------------- the input


@contextmanager
def _open_input(file: Path | None) -> Iterator[int]:
    if file is None or str(file) == "-":
        yield sys.stdin.fileno()
        return
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


async def _chunks(descriptor: int) -> AsyncIterator[bytes | None]:
    """Yields the input as it arrives; None after each pause of `_QUIET_S`."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    free_slots = threading.Semaphore(_READ_AHEAD)

    def read() -> None:
        chunk: bytes | OSError = b"."
        while chunk and not isinstance(chunk, OSError):
            free_slots.acquire()
            try:
                chunk = os.read(descriptor, _READ_BYTES)
            except OSError as error:
                chunk = error
            try:
                loop.call_soon_threadsafe(queue.put_nowait, chunk)
            except RuntimeError:  # the loop is closed
                return

    # A daemon thread: the command can end while a read from a terminal blocks.
    threading.Thread(target=read, daemon=True).start()
    is_first = True
    while True:
        try:
            chunk = await asyncio.wait_for(queue.get(), _QUIET_S)
        except TimeoutError:
            yield None
            continue
        free_slots.release()
        if isinstance(chunk, OSError):
            raise InputError(f"the input cannot be read: {chunk.strerror}")
        if not chunk:
            return
        if is_first and chunk.startswith(_GZIP):
            raise InputError("the input is compressed", hint="gzip -dc FILE | tocsin publish FEED")
        is_first = False
        yield chunk


@contextmanager
def _progress(feed: str, descriptor: int) -> Iterator[_OnProgress]:
    """Shows the share of the file that was sent, the number of records and their rate."""
    from rich.progress import TaskProgressColumn

    began_s = time.monotonic()
    name, size_bytes = safe(feed).replace("[", "\\["), os.fstat(descriptor).st_size or None
    with progress_bar(name, TaskProgressColumn, "{task.fields[rate]}", total=size_bytes, rate="") as update:

        def on_progress(records: int, sent_bytes: int) -> None:
            rate = records / max(time.monotonic() - began_s, 1e-3)
            update(advance=sent_bytes, rate=f"{records:,} records, {rate:,.0f}/s")

        yield on_progress
