"""An executor without Spark, for tests of what stands in front of it.

Its language: `rows N`, `insert N`, `text N` (one row of N bytes), `endless` (rows without end), `wait` (until stopped),
`use NAME`, `note TEXT`, `set TEXT` (an option with this note), `subscribe ID`, `fail`, `boom` (a bug); statements end
with semicolons.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import orjson

from tests.support.waiting import WITHIN_S
from tocsin.cluster.catalog.catalog import CatalogStore
from tocsin.cluster.channels.announcements.announcer import Announcer
from tocsin.cluster.channels.announcements.brokers import Brokers
from tocsin.cluster.channels.retention import Retention
from tocsin.cluster.channels.subscriptions import Subscriptions
from tocsin.cluster.data_folder.clock_guard import ClockGuard
from tocsin.cluster.engine.watchdog_thread import EngineWatch
from tocsin.cluster.engine.work_threads import WorkThreads
from tocsin.cluster.feeds.feeds import Feeds
from tocsin.cluster.feeds.metrics import FeedMetrics
from tocsin.cluster.feeds.running_feed import AcceptedRecords
from tocsin.cluster.http.broker_api import BrokerApi
from tocsin.cluster.http.routes import cluster_application
from tocsin.cluster.http.script_responses import StatementLimits
from tocsin.cluster.statements.outcomes import USUAL_OPTIONS, QueryRows, ScriptOptions, StatementOutcome
from tocsin.pipeline.sources.decoder import decoder
from tocsin.rules.model import types as t
from tocsin.rules.model.types import Field, ObjectType
from tocsin.serving.application import bind_socket, listen
from tocsin.serving.tokens import Token
from tocsin.settings import ChannelSettings, ClusterSettings
from tocsin.store.channels.sqlite.store import SqliteChannelStore
from tocsin.store.cluster.sqlite_store import SqliteStore
from tocsin.wire.errors import ConflictError, ForbiddenError, NotFoundError, StatementError, UnauthorizedError

BATCH_ROWS = 100
SECRETS = {
    f"tocsin_{name}": Token(name, role, feeds)
    for name, role, feeds in (
        ("ada", "admin", ()),
        ("bob", "writer", ()),
        ("dan", "writer", ()),
        ("cy", "reader", ()),
        ("east", "broker", ("Default.News",)),
        ("west", "broker", ()),
    )
}


class FakeStatements:
    def __init__(self) -> None:
        self.waiting = 0
        self.stopped = 0
        self.batches_made = 0
        self.scripts: list[str] = []
        self.options: list[ScriptOptions] = []
        self.dropped: set[str] = set()
        self._changed = asyncio.Condition()

    async def until(self, what: Callable[[FakeStatements], bool]) -> None:
        async with asyncio.timeout(WITHIN_S), self._changed:
            await self._changed.wait_for(lambda: what(self))

    async def _tell(self, waiting: int = 0, stopped: int = 0) -> None:
        self.waiting += waiting
        self.stopped += stopped
        async with self._changed:
            self._changed.notify_all()

    async def run(
        self,
        script: str,
        *,
        stream: bool,
        may_write: bool = True,
        may_run_code: bool = True,
        options: ScriptOptions = USUAL_OPTIONS,
    ) -> AsyncIterator[StatementOutcome]:
        self.scripts.append(script)
        self.options.append(options)
        parts = [(part.strip(), place) for part, place in _parts(script) if part.strip()]
        for number, (part, line) in enumerate(parts, start=1):
            verb, _, rest = part.partition(" ")
            if verb == "wait":
                await self._wait()
            elif verb == "boom":
                raise RuntimeError("a secret of the inside")
            elif verb == "code" and not may_run_code:
                raise ForbiddenError("this token may not bring code", statement=number)
            elif verb == "note":
                yield StatementOutcome(number, "create_dataset", {"name": "D", "notes": [rest]}, None)
            elif verb == "set":
                summary = {"name": "o", "value": "v", "applied": False, "note": rest}
                yield StatementOutcome(number, "set_option", summary, None)
            elif verb == "subscribe":
                yield StatementOutcome(number, "subscribe_statement", {"subscription": rest, "interest": 1}, None)
            elif verb == "insert" and not may_write:
                raise ForbiddenError("this token may only run queries", statement=number)
            elif verb == "insert" and rest.isdecimal():
                yield StatementOutcome(number, "insert", {"inserted": int(rest)}, None)
            elif verb == "refused":
                raise ConnectionRefusedError("something behind the executor is away")
            elif verb.lower() == "use" and rest.strip("`") not in self.dropped:
                yield StatementOutcome(number, "use", {"dataverse": rest.strip("`")}, None)
            elif (rows := self._query(verb, rest)) is not None:
                yield StatementOutcome(number, "query", {}, QueryRows(rows))
            else:
                raise StatementError(
                    f"{verb} is not a statement", statement=number, line=line, column=1, hint="write another"
                )

    def _query(self, verb: str, rest: str) -> AsyncIterator[list[bytes]] | None:
        if verb == "rows" and rest.isdecimal():
            return self._rows(int(rest))
        if verb == "text" and rest.isdecimal():
            return self._text(int(rest))
        if verb == "json":
            return self._given(rest)
        return self._endless() if verb == "endless" else None

    async def _wait(self) -> None:
        await self._tell(waiting=1)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.shield(self._tell(waiting=-1, stopped=1))

    async def _rows(self, count: int) -> AsyncIterator[list[bytes]]:
        for start in range(0, count, BATCH_ROWS):
            yield [orjson.dumps({"n": n, "name": f"row {n}"}) for n in range(start, min(start + BATCH_ROWS, count))]

    async def _endless(self) -> AsyncIterator[list[bytes]]:
        try:
            while True:
                self.batches_made += 1
                await self._tell()
                yield [b'"' + b"x" * 1000 + b'"'] * BATCH_ROWS
        finally:
            await asyncio.shield(self._tell(stopped=1))

    async def _text(self, size_bytes: int) -> AsyncIterator[list[bytes]]:
        yield [b'"' + b"x" * size_bytes + b'"']

    async def _given(self, rows: str) -> AsyncIterator[list[bytes]]:
        yield [orjson.dumps(row) for row in orjson.loads(rows)]

    async def close(self) -> None:
        return None


def _parts(script: str) -> Iterator[tuple[str, int]]:
    """The statements, each with its line."""
    line = 1
    for part in script.split(";"):
        yield part, line + part[: len(part) - len(part.lstrip())].count("\n")
        line += part.count("\n")


class FakeFeeds:
    """Feeds of any name but `Nowhere`, without a log, of records with a whole number `id`; `Stopped` is stopped."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, bytes, str | None, bool]] = []
        self._decode = decoder("json", ObjectType((Field("id", t.BIGINT),), open=True))

    async def accept(self, name: str, body: bytes, key: str | None, *, visible: bool) -> AcceptedRecords:
        if name == "Stopped":
            raise ConflictError("the feed Stopped is stopped")
        if name == "Nowhere":
            raise NotFoundError(f"there is no feed {name}")
        decoded = [record for batch in self._decode(body) for record in batch]
        self.taken.append((name, body, key, visible))
        refused = [
            {"index": record.index, "field": record.field, "reason": record.reason}
            for record in decoded
            if record.record is None
        ]
        accepted = len(decoded) - len(refused)
        status = 200 if accepted else 422
        return AcceptedRecords(status, {"accepted": accepted, "rejected": refused}, len(decoded))

    def describe(self, name: str) -> dict[str, Any]:
        if name == "Nowhere":
            raise NotFoundError(f"there is no feed {name}")
        return {"feed": f"Default.{name}", "adapter": "http_adapter", "format": "json"}

    def figures(self) -> list[FeedMetrics]:
        return []

    def as_feeds(self) -> Feeds:
        """What the routes ask of feeds is all there."""
        return cast("Feeds", self)


def idle_door() -> BrokerApi:
    """The door for brokers, and nothing behind it."""
    catalog, store = CatalogStore(SqliteStore(Path("nowhere"))), SqliteChannelStore(Path("nowhere"))
    announcer = Announcer(catalog, store)
    brokers, retention = Brokers(catalog, store, announcer), Retention(catalog, store, ChannelSettings())
    return BrokerApi(store, Subscriptions(catalog, store), brokers, announcer, retention)


async def fake_backup(to: Path) -> dict[str, Any]:
    return {"to": str(to)}


class FakeCredentials:
    async def check(self, secret: str) -> Token:
        if secret not in SECRETS:
            raise UnauthorizedError("this token is not known")
        return SECRETS[secret]


@dataclass(frozen=True, slots=True)
class FakeWatch:
    """What a server knows of its engine."""

    ready: Callable[[], bool] = lambda: True
    watching: Callable[[], bool] = lambda: True
    replacements: int = 2
    last_answer_age_s: float = 0.5
    unstoppable: int = 0
    threads: WorkThreads = field(default_factory=WorkThreads)

    def trouble(self) -> str | None:
        return None if self.ready() else "the engine is being replaced: it has ended"

    def retry_after_s(self) -> float:
        return 5.0

    def asked_by(self, asker: str) -> AbstractContextManager[None]:
        return self.threads.asked_by(asker)

    def is_watching(self) -> bool:
        return self.watching()

    def as_watch(self) -> EngineWatch:
        return cast("EngineWatch", self)


@asynccontextmanager
async def serving(
    statements: FakeStatements,
    *,
    limits: StatementLimits | None = None,
    ready: Callable[[], bool] = lambda: True,
    watching: Callable[[], bool] = lambda: True,
    threads: WorkThreads | None = None,
    auth: str = "auto",
    host: str = "127.0.0.1",
    feeds: FakeFeeds | None = None,
    door: Callable[[], AbstractAsyncContextManager[BrokerApi]] | None = None,
    guard: ClockGuard | None = None,
    **http: object,
) -> AsyncIterator[str]:
    """A real server on a free port around the fake; its address."""
    settings = ClusterSettings.model_validate({"auth": {"mode": auth}, "http": {"host": host, **http}})
    async with nullcontext(idle_door()) if door is None else door() as brokers:
        app = cluster_application(
            settings,
            statements,
            FakeCredentials(),
            engine=FakeWatch(ready, watching, threads=threads or WorkThreads()).as_watch(),
            limits=limits or StatementLimits(30, 1_000, 4, grace_s=1),
            backup=fake_backup,
            feeds=(feeds or FakeFeeds()).as_feeds(),
            brokers=brokers,
            guard=guard,
        )
        with bind_socket(host, 0) as (sock, address):
            async with listen(app, sock):
                yield address.replace("0.0.0.0", "127.0.0.1")


@contextmanager
def serving_beside(**options: Any) -> Iterator[str]:
    """The same in a thread of its own, for clients that block; its address."""
    address: Future[str] = Future()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with serving(FakeStatements(), **options) as url:
            address.set_result(url)
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        yield address.result(timeout=WITHIN_S)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
