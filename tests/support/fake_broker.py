"""A broker that speaks the subscribers' contract and keeps everything in memory; a test tells it how to misbehave."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
from aiohttp import WSMsgType, web

from tocsin import sdk
from tocsin.serving.answers import answer, answer_errors, refusal
from tocsin.wire.answers import LoginAnswer, Subscription, SubscriptionsPage, error_reply, events_page, ok_reply
from tocsin.wire.cursors import START, Cursor, parse_cursor
from tocsin.wire.envelopes import EnvelopeWriter, item
from tocsin.wire.errors import ConflictError, LimitError, NotFoundError, TocsinError, UnauthorizedError
from tocsin.wire.subscriber import AckRequest, BadRequest, Credentials, LoginRequest, SubscribeRequest, parse_request

EPOCH = 1_763_200_000
JAVASCRIPT = Path(sdk.__file__).parent / "tocsin.js"
_WRITER = EnvelopeWriter("v.b")


@dataclass
class Interest:
    """All results of an interest, and the marker of its one subscriber. `lost`: results up to there are gone."""

    subscription: Subscription
    results: list[tuple[Cursor, bytes]] = field(default_factory=list)
    marker: Cursor = START
    lost: Cursor | None = None

    @property
    def head(self) -> Cursor:
        return self.results[-1][0] if self.results else START

    def envelope(self, after: Cursor, limit: int | None = None) -> bytes | None:
        """What there is after a cursor."""
        gap = self.lost if self.lost is not None and self.lost > after else None
        found = [(cursor, made) for cursor, made in self.results if cursor > after and (gap is None or cursor > gap)]
        if not found and gap is None:
            return None
        page = found[:limit]
        return _WRITER.results(
            self.subscription.channel,
            self.subscription.interest,
            after,
            page[-1][0] if page else gap or after,
            [made for _, made in page],
            at_us=0,
            gap=gap,
            more=len(page) < len(found),
        )


@dataclass
class FakeBroker:
    url: str = ""
    passwords: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    """Good tokens, and whose they are."""
    token_s: float = 3600.0
    interests: dict[int, Interest] = field(default_factory=dict)
    sockets: set[web.WebSocketResponse] = field(default_factory=set)
    refusals: list[TocsinError] = field(default_factory=list)
    """The next requests are refused with these."""
    deaf: bool = False
    """Acknowledgements over WebSockets are lost."""
    ignored: list[AckRequest] = field(default_factory=list)
    acked: list[AckRequest] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    published: list[tuple[str, str, bytes]] = field(default_factory=list)
    groups: dict[str, Any] = field(default_factory=dict)
    page: int = 100
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    # --- what a test does

    def make(self, interest: int, *values: Any, send: bool = True) -> None:
        """Sends new results of an interest to all connected clients, in one envelope."""
        one = self.interests[interest]
        before = one.head
        for value in values:
            cursor = Cursor(EPOCH, next(self._numbers), 0)
            one.results.append((cursor, item(cursor, 1_763_200_000_000_000, orjson.dumps(value))))
        if send:
            self.tell(one, before)

    def tell(self, one: Interest, after: Cursor) -> None:
        envelope = one.envelope(after)
        assert envelope is not None
        if one.subscription.mode == "notify":
            told = one.subscription
            envelope = _WRITER.available(told.channel, told.interest, one.head, at_us=0)
        self.send(envelope)

    def send(self, frame: bytes) -> None:
        for socket in self.sockets:
            asyncio.ensure_future(socket.send_str(frame.decode()))  # noqa: RUF006 - the loop ends with the test

    def end(self, interest: int, reason: str) -> None:
        told = self.interests.pop(interest).subscription
        self.send(_WRITER.end(told.channel, interest, reason, at_us=0))

    def cut(self) -> None:
        """All connections break, without a word."""
        for socket in list(self.sockets):
            request = socket._req
            assert request is not None
            assert request.transport is not None
            request.transport.abort()

    # --- what it answers

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/register", self.register),
            web.post("/v1/login", self.login),
            web.post("/v1/token", self.renew),
            web.post("/v1/logout", self.logout),
            web.post("/v1/subscriptions", self.subscribe),
            web.get("/v1/subscriptions", self.list),
            web.get("/v1/subscriptions/{id}/results", self.pull),
            web.delete("/v1/subscriptions/{id}", self.unsubscribe),
            web.get("/v1/channels", self.channels),
            web.get("/v1/subscribers", self.subscribers),
            web.get("/v1/subscribers/{user}", self.subscriber),
            web.post("/v1/groups", self.create_group),
            web.get("/v1/groups/{name}", self.group),
            web.post("/v1/acks", self.acks),
            web.post("/v1/feeds/{name}", self.feed),
            web.put("/v1/webhook", self.webhook),
            web.get("/v1/webhook", self.webhook),
            web.delete("/v1/webhook", self.webhook),
            web.get("/v1/stream", self.stream),
            web.get("/v1/tocsin.js", self.javascript),
            web.get("/page", self.empty_page),
        ]

    def user(self, request: web.Request) -> str:
        return self.owner(request.headers.get("Authorization", "").removeprefix("Bearer "))

    def owner(self, token: str) -> str:
        if token not in self.tokens:
            raise UnauthorizedError("the token is not good")
        return self.tokens[token]

    def logged_in(self, user: str) -> web.Response:
        token = f"token{next(self._numbers)}"
        self.tokens[token] = user
        told = LoginAnswer(token, datetime.now(UTC) + timedelta(seconds=self.token_s), user, "default")
        return answer(told.to_json())

    async def register(self, request: web.Request) -> web.Response:
        said = Credentials.parse(orjson.loads(await request.read()))
        if said.user in self.passwords:
            raise ConflictError(f"there is a user {said.user} already")
        self.passwords[said.user] = said.password
        return answer({"user": said.user, "application": said.application}, status=201)

    async def login(self, request: web.Request) -> web.Response:
        said = Credentials.parse(orjson.loads(await request.read()))
        if self.passwords.get(said.user) != said.password:
            raise UnauthorizedError("user and password do not fit")
        return self.logged_in(said.user)

    async def renew(self, request: web.Request) -> web.Response:
        return self.logged_in(self.user(request))

    async def logout(self, request: web.Request) -> web.Response:
        self.user(request)
        self.tokens.clear()
        return answer({})

    async def subscribe(self, request: web.Request) -> web.Response:
        self.user(request)
        said = SubscribeRequest.parse(orjson.loads(await request.read()))
        for entry in self.interests.values():
            if (entry.subscription.channel, entry.subscription.parameters) == (said.channel, said.parameters):
                applied = None if said.since is None else False
                return answer(replace(entry.subscription, since_applied=applied).to_json())
        interest = 17 + len(self.interests)
        since = said.since or Cursor(EPOCH, 0, 0)
        made = Subscription(
            f"sub_{interest}", said.channel, said.parameters, interest, since, said.mode, recovered=True,
            since_applied=None if said.since is None else True,
        )  # fmt: skip
        self.interests[interest] = Interest(made, marker=since)
        return answer(made.to_json(), status=201)

    def told(self) -> list[Subscription]:
        return [interest.subscription for interest in self.interests.values()]

    async def list(self, request: web.Request) -> web.Response:
        self.user(request)
        told = [subscription for subscription in self.told() if subscription.id > request.query.get("after", "")]
        page = told[: self.page]
        return answer(SubscriptionsPage(tuple(page), page[-1].id if len(page) < len(told) else None).to_json())

    def one(self, request: web.Request) -> Interest:
        self.user(request)
        for interest in self.interests.values():
            if interest.subscription.id == request.match_info["id"]:
                return interest
        raise NotFoundError("there is no such subscription")

    async def unsubscribe(self, request: web.Request) -> web.Response:
        del self.interests[self.one(request).subscription.interest]
        return answer({})

    async def pull(self, request: web.Request) -> web.Response:
        one = self.one(request)
        after = parse_cursor(request.query["after"]) if "after" in request.query else one.marker
        envelope = one.envelope(after, int(request.query.get("limit", "100")))
        more = envelope is not None and orjson.loads(envelope)["data"]["more"]
        body = events_page([] if envelope is None else [envelope], more=more)
        return web.Response(body=body, content_type="application/json")

    async def channels(self, request: web.Request) -> web.Response:
        self.user(request)
        return answer({"channels": [{"name": "v.c", "parameters": ["x"]}]})

    async def subscribers(self, request: web.Request) -> web.Response:
        self.user(request)
        return answer(
            {"subscribers": [{"user": user, "application": "default"} for user in self.passwords], "next": None}
        )

    async def subscriber(self, request: web.Request) -> web.Response:
        self.user(request)
        user = request.match_info["user"]
        if user not in self.passwords:
            raise NotFoundError(f"there is no user {user}")
        return answer(
            {
                "user": user,
                "application": "default",
                "subscriptions": [subscription.to_json() for subscription in self.told()],
            }
        )

    async def create_group(self, request: web.Request) -> web.Response:
        said = orjson.loads(await request.read())
        self.groups[said["name"]] = said["members"]
        return answer(said, status=201)

    async def group(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        told = {"name": name, "created_at": "2026-11-15T12:00:00Z", "subscriptions": []}
        # In two pages.
        members = sorted(self.groups[name])
        first = "after" not in request.query
        return answer({**told, "members": members[:1] if first else members[1:], "next": members[0] if first else None})

    def take_acks(self, acks: AckRequest) -> None:
        self.acked.append(acks)
        for interest, cursor in acks.acks.items():
            if (one := self.interests.get(interest)) is not None:
                one.marker = max(one.marker, cursor)

    async def acks(self, request: web.Request) -> web.Response:
        self.user(request)
        acks = AckRequest.parse(orjson.loads(await request.read()))
        self.take_acks(acks)
        return answer({"acknowledged": len(acks.acks)})

    async def feed(self, request: web.Request) -> web.Response:
        self.user(request)
        body, key = await request.read(), request.headers["Idempotency-Key"]
        self.published.append((request.match_info["name"], key, body))
        rejected = [{"index": 0, "field": "", "reason": "no"}] if b"bad" in body else []
        accepted = len(body.splitlines()) - len(rejected)
        return answer({"accepted": accepted, "rejected": rejected}, status=200 if accepted else 422)

    async def webhook(self, request: web.Request) -> web.Response:
        self.user(request)
        if request.method == "DELETE":
            return answer({})
        secret = {"secret": "whsec_x"} if request.method == "PUT" else {}
        return answer({"url": "http://there/", **secret})

    async def javascript(self, _: web.Request) -> web.Response:
        return web.Response(body=JAVASCRIPT.read_bytes(), content_type="text/javascript")

    async def empty_page(self, _: web.Request) -> web.Response:
        return web.Response(text="<!doctype html><title>a page</title>", content_type="text/html")

    async def stream(self, request: web.Request) -> web.StreamResponse:
        shown = "Authorization" in request.headers
        if shown:
            self.user(request)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        if not shown:
            # As from a browser, which cannot send headers.
            said = parse_request((await socket.receive()).data)
            try:
                assert not isinstance(said, BadRequest)
                assert isinstance(said.body, LoginRequest)
                self.owner(said.body.token)
            except TocsinError as error:
                await socket.send_str(error_reply(None, error).decode())
                await socket.close(code=4401)
                return socket
            if said.ref is not None:
                await socket.send_str(ok_reply(said.ref, {}).decode())
        self.sockets.add(socket)
        try:
            for interest in self.interests.values():
                if (envelope := interest.envelope(interest.marker)) is not None:
                    if interest.subscription.mode == "notify":
                        envelope = _WRITER.available(
                            interest.subscription.channel, interest.subscription.interest, interest.head, at_us=0
                        )
                    await socket.send_str(envelope.decode())
            async for message in socket:
                if message.type != WSMsgType.TEXT:
                    continue
                request_ = parse_request(message.data)
                if isinstance(request_, BadRequest):
                    await socket.send_str(error_reply(request_.ref, request_.error).decode())
                elif isinstance(request_.body, AckRequest) and self.deaf:
                    self.ignored.append(request_.body)
                elif isinstance(request_.body, AckRequest):
                    self.take_acks(request_.body)
                    if request_.ref is not None:
                        await socket.send_str(ok_reply(request_.ref, {"acknowledged": 0}).decode())
        finally:
            self.sockets.discard(socket)
        return socket


@web.middleware
async def _refusing(request: web.Request, handler: Any) -> web.StreamResponse:
    broker = request.app[BROKER]
    broker.asked.append(f"{request.method} {request.path}")
    if broker.refusals:
        return refusal(broker.refusals.pop(0))
    return await answer_errors(request, handler)


BROKER: web.AppKey[FakeBroker] = web.AppKey("BROKER", FakeBroker)


@asynccontextmanager
async def listening(broker: FakeBroker, port: int = 0) -> AsyncIterator[FakeBroker]:
    """The broker on a free port, or again on the one that it had."""
    app = web.Application(middlewares=[_refusing])
    app[BROKER] = broker
    app.add_routes(broker.routes())
    runner = web.AppRunner(app, shutdown_timeout=0.05)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, reuse_address=True)
    await site.start()
    assert runner.addresses
    broker.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield broker
    finally:
        broker.cut()
        await runner.cleanup()


def port_of(broker: FakeBroker) -> int:
    return int(broker.url.rpartition(":")[2])


def too_many(retry_after_s: float = 0.01) -> LimitError:
    return LimitError("too many", status=429, retry_after_s=retry_after_s)
