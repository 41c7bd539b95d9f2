"""Polling a real server: what is asked, what is taken, and what happens when it does not answer as it should."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from tests.support.polled_server import Address, address, packed
from tests.support.waiting import WITHIN_S, until
from tocsin.cluster.catalog.entries import FeedEntry
from tocsin.cluster.feeds import batches
from tocsin.cluster.feeds.adapters import url_poller
from tocsin.cluster.feeds.adapters.seen_items import SeenItems
from tocsin.cluster.feeds.adapters.url_poller import UrlPoller, poll_back_off
from tocsin.cluster.feeds.limits import FeedLimits
from tocsin.cluster.feeds.metrics import FeedCounts
from tocsin.cluster.feeds.options import UrlOptions
from tocsin.cluster.intake.log import IntakeLog
from tocsin.pipeline.sources.decoder import DecodedRecord
from tocsin.pipeline.sources.polled_items import judge
from tocsin.rules.model.types import BIGINT, Field, ObjectType
from tocsin.serving.address_guard import AddressGuard
from tocsin.serving.addresses import NO_NETWORKS, Networks
from tocsin.wire.errors import ConflictError, LimitError

KIND = ObjectType((Field("id", BIGINT),), open=True)
FEED = FeedEntry("v", "F", options=(), type_name="v.T", type=KIND, folder="f")
PERIOD_S = 0.02


@dataclass
class FakeFeed:
    """A feed's log, and what came into it."""

    log: IntakeLog
    seen: SeenItems
    taken: list[Any] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    behind: bool = False
    counts: FeedCounts = field(default_factory=FeedCounts)
    entry: FeedEntry = FEED
    poller: UrlPoller | None = None
    open: asyncio.Event = field(default_factory=asyncio.Event)

    async def until_open(self) -> None:
        await self.open.wait()

    async def close(self) -> None:
        assert self.poller is not None
        await self.poller.close()

    async def take(self, decoded: Sequence[DecodedRecord], seen: Sequence[bytes]) -> None:
        if not self.open.is_set():
            raise ConflictError("the feed is stopping")
        if self.behind:
            raise LimitError("the feed is behind", status=429, retry_after_s=0)
        await self.log.append(batches.pack_batch(decoded, KIND, seen), len(decoded))
        self.taken += [record.record["id"] for record in decoded if record.record is not None]
        self.refused += [record.field for record in decoded if record.record is None]


@asynccontextmanager
async def polled(
    url: str, folder: Path, format_: str = "json", period_s: float = PERIOD_S, **more: Any
) -> AsyncIterator[FakeFeed]:
    seen = SeenItems.open(folder)
    kept = FakeFeed(IntakeLog.open(folder, observer=seen), seen)
    kept.open.set()
    kept.poller = poller = UrlPoller(
        kept, UrlOptions(url, format_, period_s), seen, judge(KIND), kept.counts, rng=Random(1), **more
    )
    poller.start()
    try:
        yield kept
    finally:
        await poller.close()
        await kept.log.close()


@pytest.fixture
async def at() -> AsyncIterator[Address]:
    async with address() as made:
        yield made


def ids(*numbers: int) -> list[dict[str, Any]]:
    return [{"id": number} for number in numbers]


# ---------------------------------------------------------------- each once


async def test_each_item_is_taken_once_in_the_order_of_the_answers(at: Address, tmp_path: Path) -> None:
    at.items = ids(2, 1)
    async with polled(at.url, tmp_path / "log") as kept:
        await at.answered_again()
        at.items = ids(4, 3, 2, 3)
        await at.answered_again()
        assert kept.taken == [2, 1, 4, 3]
        assert kept.counts.polls_failed == 0


async def test_an_item_that_changed_or_came_back_is_not_taken_again(at: Address, tmp_path: Path) -> None:
    at.items = [{"id": 1, "v": 1}]
    async with polled(at.url, tmp_path / "log") as kept:
        await at.answered_again()
        at.items = [{"id": 1, "v": 2}]
        await at.answered_again()
        at.items = []
        await at.answered_again()
        at.items = ids(1, 2)
        await at.answered_again()
        assert kept.taken == [1, 2]


async def test_an_item_that_does_not_fit_is_refused_once_and_its_neighbours_pass(at: Address, tmp_path: Path) -> None:
    at.items = [{"id": 1}, {"id": "x"}, {"id": 3}]
    async with polled(at.url, tmp_path / "log") as kept:
        await at.answered_again()
        await at.answered_again()
        assert (kept.taken, kept.refused) == ([1, 3], ["id"])


async def test_an_item_of_more_than_a_mebibyte_is_refused_by_itself(at: Address, tmp_path: Path) -> None:
    at.items = [{"id": 1}, {"id": 2, "text": "x" * (1 << 20)}]
    async with polled(at.url, tmp_path / "log") as kept:
        await at.answered_again()
        assert (kept.taken, kept.refused) == ([1], [""])


async def test_many_items_come_in_several_writes(at: Address, tmp_path: Path) -> None:
    at.items = ids(*range(95))
    async with polled(at.url, tmp_path / "log", limits=FeedLimits(items_per_write=10)) as kept:
        await at.answered_again()
        assert kept.taken == list(range(95))
        assert len(kept.log.read(0, max_rows=1_000, max_bytes=1 << 20)) == 10


async def test_who_polls_again_takes_nothing_again(at: Address, tmp_path: Path) -> None:
    at.items = ids(1, 2)
    async with polled(at.url, tmp_path / "log"):
        await at.answered_again()
    at.items = ids(1, 2, 3)
    async with polled(at.url, tmp_path / "log") as kept:
        await at.answered_again()
        assert kept.taken == [3]


async def test_geojson_and_rss_are_read(at: Address, tmp_path: Path) -> None:
    place = {"type": "Feature", "id": 7, "properties": {"mag": 4.5}, "geometry": None}
    at.says(json.dumps({"type": "FeatureCollection", "features": [place]}).encode())
    async with polled(at.url, tmp_path / "one", "geojson") as kept:
        await at.asked(2)
        assert kept.taken == [7]
    at.says(b"<rss><channel><item><title>no number</title></item></channel></rss>")
    async with polled(at.url, tmp_path / "two", "rss") as kept:
        await at.asked(2)
        assert kept.refused == ["id"]


# ---------------------------------------------------------------- asking


async def test_an_answer_that_has_not_changed_is_not_sent_again(at: Address, tmp_path: Path) -> None:
    modified = format_datetime(datetime(2026, 11, 15, tzinfo=UTC), usegmt=True)

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.headers.get("If-None-Match") == '"v1"' and request.headers.get("If-Modified-Since") == modified:
            return web.Response(status=304)
        return web.json_response(ids(1), headers={"ETag": '"v1"', "Last-Modified": modified})

    at.instead = answer
    async with polled(at.url, tmp_path / "log") as kept:
        await until(lambda: kept.counts.polls_unchanged > 1, "unchanged")
        assert (kept.taken, kept.counts.polls_failed) == ([1], 0)
        assert "If-None-Match" not in at.requests[0].headers


async def test_an_answer_that_was_not_kept_is_asked_for_again(at: Address, tmp_path: Path) -> None:
    at.says(json.dumps(ids(1)).encode(), ETag='"v1"')
    async with polled(at.url, tmp_path / "log") as kept:
        kept.behind = True
        await until(lambda: kept.counts.polls_failed > 1, "failures")
        kept.behind = False
        await until(lambda: kept.taken == [1], "taken")
        refused = [request for request in at.requests[:2] if "If-None-Match" in request.headers]
        assert refused == []
        await at.asked(2)
        assert at.requests[-1].headers["If-None-Match"] == '"v1"'


async def test_a_packed_answer_is_unpacked_and_who_asks_says_who_it_is(at: Address, tmp_path: Path) -> None:
    at.says(packed(ids(1, 2)), Content_Encoding="gzip")
    async with polled(at.url, tmp_path / "log") as kept:
        await until(lambda: kept.taken == [1, 2], "taken")
    asked = at.requests[0].headers
    assert "gzip" in asked["Accept-Encoding"]
    assert asked["User-Agent"].startswith("tocsin/")


async def test_redirects_are_followed_so_far(at: Address, tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        left = int(request.query.get("left", "3"))
        if left:
            raise web.HTTPFound(f"/items?left={left - 1}")
        return web.json_response(ids(1))

    at.instead = answer
    async with polled(at.url, tmp_path / "log") as kept:
        await until(lambda: kept.taken == [1], "taken")
    async with polled(f"{at.url}?left=1000", tmp_path / "other") as kept:
        await until(lambda: kept.counts.polls_failed > 0, "refused")
        assert kept.taken == []


async def test_no_poll_begins_before_the_one_before_it_has_ended(at: Address, tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def answer(_: web.Request) -> web.StreamResponse:
        await gate.wait()
        return web.json_response(ids(1))

    at.instead = answer
    async with polled(at.url, tmp_path / "log", period_s=0.001) as kept:
        await at.asked(1)
        asked = len(at.requests)
        gate.set()
        await until(lambda: kept.taken == [1], "taken")
        assert asked == 1


# ---------------------------------------------------------------- trouble


@pytest.mark.parametrize(
    ("body", "status", "format_"),
    [
        (b"", 500, "json"),
        (b"[]", 404, "json"),
        (b"", 204, "json"),
        (b"", 304, "json"),
        (b'[{"id": 1}, {"id"', 200, "json"),
        (b'[{"id": 1}, 7]', 200, "json"),
        (b"\xff\xfe", 200, "json"),
        (b"[" * 100_000, 200, "json"),
        (b"{}", 200, "geojson"),
        (b"<html><body>", 200, "rss"),
        (b'<!DOCTYPE r [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><rss><item>&b;</item></rss>', 200, "rss"),
    ],
)
async def test_what_cannot_be_read_is_left_and_asked_for_again(
    at: Address, tmp_path: Path, body: bytes, status: int, format_: str
) -> None:
    at.says(body, status)
    async with polled(at.url, tmp_path / "log", format_) as kept:
        with capture_logs() as logs:
            await until(lambda: kept.counts.polls_failed > 2, "failures")
        assert [log["event"] for log in logs] == ["polling fails"]
        assert kept.taken == kept.refused == []
        assert len(kept.seen) == 0


async def test_after_failures_it_goes_on_and_says_so_once_each(at: Address, tmp_path: Path) -> None:
    with capture_logs() as logs:
        at.items = ids(1)
        async with polled(at.url, tmp_path / "log") as kept:
            await until(lambda: kept.taken == [1], "taken")
            at.says(b"", 500)
            await until(lambda: kept.counts.polls_failed > 2, "failures")
            at.instead, at.items = None, ids(1, 2)
            await until(lambda: kept.taken == [1, 2], "taken")
            await at.answered_again()
    assert [(log["event"], log["log_level"]) for log in logs] == [
        ("polling fails", "warning"),
        ("polling works again", "info"),
    ]
    assert logs[0]["reason"] == "answered 500"
    assert logs[1]["failures"] == kept.counts.polls_failed


async def test_a_secret_in_the_address_is_not_told(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with polled("http://me:s3cret@127.0.0.1:1/x?key=s3cret", tmp_path / "log") as kept:
            await until(lambda: kept.counts.polls_failed > 0, "a failure")
    assert logs[0]["reason"].startswith("cannot be reached")
    assert "s3cret" not in str(logs)


async def test_polling_goes_on_when_it_cannot_tell_that_it_failed(
    at: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(url_poller, "_log", None)  # whatever is asked of it fails
    at.says(b"", 500)
    async with polled(at.url, tmp_path / "log") as kept:
        await until(lambda: kept.counts.polls_failed > 1, "failures")
        at.instead, at.items = None, ids(1)
        await until(lambda: kept.taken == [1], "taken")


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
async def test_an_answer_that_is_too_large_is_not_read_to_its_end(at: Address, tmp_path: Path, encoding: str) -> None:
    body = json.dumps([{"id": 1, "text": "x" * 5_000_000}]).encode()
    if encoding == "gzip":
        body = packed([{"id": 1, "text": "x" * 5_000_000}])
        assert len(body) < 20_000
    at.says(body, Content_Encoding=encoding)
    with capture_logs() as logs:
        async with polled(at.url, tmp_path / "log", limits=FeedLimits(poll_body_bytes=100_000)) as kept:
            await until(lambda: kept.counts.polls_failed > 0, "a failure")
            assert kept.taken == []
    assert logs[0]["reason"] == "answered too much: more than 100000 bytes"


async def test_broken_gzip_is_told(at: Address, tmp_path: Path) -> None:
    at.says(b"this is no gzip", Content_Encoding="gzip")
    async with polled(at.url, tmp_path / "log") as kept:
        await until(lambda: kept.counts.polls_failed > 1, "failures")
        at.instead, at.items = None, ids(1)
        await until(lambda: kept.taken == [1], "taken")


async def test_a_server_that_is_too_slow_or_breaks_off_is_left(at: Address, tmp_path: Path) -> None:
    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = 1_000
        await response.prepare(request)
        await response.write(b"[")
        await asyncio.Event().wait()
        return response

    async def break_off(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = 1_000
        await response.prepare(request)
        await response.write(b'[{"id": 1}]')
        assert request.transport is not None
        request.transport.close()
        return response

    with capture_logs() as logs:
        at.instead = drip
        async with polled(at.url, tmp_path / "log", limits=FeedLimits(poll_timeout_s=0.2)) as kept:
            await until(lambda: kept.counts.polls_failed > 0, "it was too slow")
            at.instead = break_off
            failures = kept.counts.polls_failed
            await until(lambda: kept.counts.polls_failed > failures + 1, "it broke off")
            assert kept.taken == []
            at.instead, at.items = None, ids(1)
            await until(lambda: kept.taken == [1] and len(logs) > 2, "taken, and told")
    assert [log.get("reason", "").partition(":")[0] for log in logs] == [
        "did not answer in time",
        "broke off its answer",
        "",
    ]


# ---------------------------------------------------------------- pauses


async def test_a_server_that_asks_for_a_pause_gets_it(at: Address, tmp_path: Path) -> None:
    at.says(b"", 503, Retry_After="3600")
    async with polled(at.url, tmp_path / "log") as kept:
        await until(lambda: kept.counts.polls_failed == 1, "a failure")
        at.instead = None
        # Many periods of another feed pass, and nobody asks here.
        async with address() as other, polled(other.url, tmp_path / "other"):
            await other.asked(10)
        assert len(at.requests) == 1


@pytest.mark.parametrize(
    ("said", "expected_s"),
    [
        ("7", 7.0),
        ("999999999", 86_400.0),
        ("-1", 0.0),
        ("soon", 0.0),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 0.0),
        (format_datetime(datetime.now(UTC) + timedelta(days=400), usegmt=True), 86_400.0),
    ],
    ids=["seconds", "too many", "negative", "words", "past", "date"],
)
async def test_how_long_a_server_asks_to_wait(at: Address, said: str, expected_s: float) -> None:
    at.says(b"", 429, Retry_After=said)
    async with url_poller.UrlClient(UrlOptions(at.url, "json")) as fetcher:
        with pytest.raises(url_poller.FetchError) as raised:
            await fetcher.fetch()
    assert raised.value.retry_after_s == expected_s


async def test_no_redirect_leads_into_a_private_network(at: Address) -> None:
    """The first address is allowed, and what it answers leads to another of this machine."""
    inside = at.url.replace("127.0.0.1", "127.0.0.2")
    at.says(b"", 302, Location=inside)
    guard = AddressGuard("cluster.feeds.private", Networks(["127.0.0.1"]))
    async with url_poller.UrlClient(UrlOptions(at.url, "json"), guard=guard) as fetcher:
        with pytest.raises(
            url_poller.FetchError, match=r"127\.0\.0\.2 is in a private network.*cluster\.feeds\.private"
        ):
            await fetcher.fetch()
    assert len(at.requests) == 1


async def test_a_feed_that_was_made_when_it_was_allowed_polls_no_more(at: Address, tmp_path: Path) -> None:
    guard = AddressGuard("cluster.feeds.private", NO_NETWORKS)
    with capture_logs() as logs:
        async with polled(at.url, tmp_path / "log", guard=guard) as kept:
            await until(lambda: kept.counts.polls >= 1 and bool(logs))
    assert at.requests == []
    assert "cluster.feeds.private" in str(logs)


def test_pauses_grow_to_the_period_or_a_quarter_of_an_hour() -> None:
    rng = Random(1)

    def wait_s(failures: int, period_s: float, retry_after_s: float = 0.0) -> float:
        back_off = poll_back_off(period_s, rng)
        for _ in range(failures - 1):
            back_off.next_s()
        return back_off.next_s(retry_after_s)

    assert 1.0 <= wait_s(1, 1.0) <= 1.25
    assert 4.0 <= wait_s(3, 1.0) <= 5.0
    assert 900.0 <= wait_s(10_000, 1.0) <= 1_125.0
    assert 5.0 <= wait_s(1, 3_600.0) <= 6.25
    assert 3_600.0 <= wait_s(50, 3_600.0) <= 4_500.0
    assert wait_s(1, 1.0, retry_after_s=600.0) >= 600.0
    assert len({wait_s(3, 1.0) for _ in range(10)}) == 10


# ---------------------------------------------------------------- the end


async def test_who_has_ended_asks_no_more(at: Address, tmp_path: Path) -> None:
    async with polled(at.url, tmp_path / "log") as kept:
        await at.asked(2)
        await kept.close()
        asked = len(at.requests)
        async with polled(at.url + "?other", tmp_path / "other"):
            await at.asked(10)
        assert [request for request in at.requests[asked:] if "other" not in request.query] == []


async def test_nobody_is_asked_while_the_feed_takes_nothing(at: Address, tmp_path: Path) -> None:
    at.items = ids(1)
    with capture_logs() as logs:
        async with polled(at.url, tmp_path / "log") as kept:
            kept.open.clear()
            async with address() as other, polled(other.url, tmp_path / "other"):
                await other.asked(10)
            assert (len(at.requests), kept.taken) == (0, [])
            kept.open.set()
            await until(lambda: kept.taken == [1], "taken")
            assert kept.counts.polls_failed == 0
    assert logs == []


async def test_what_comes_while_the_feed_is_being_stopped_comes_again_when_it_goes_on(
    at: Address, tmp_path: Path
) -> None:
    at.says(json.dumps(ids(1, 2)).encode(), ETag='"v1"')
    async with polled(at.url, tmp_path / "log", limits=FeedLimits(items_per_write=1)) as kept:
        take = kept.take

        async def once(decoded: Sequence[DecodedRecord], seen: Sequence[bytes]) -> None:
            await take(decoded, seen)
            kept.open.clear()

        kept.take = once  # type: ignore[method-assign]
        await until(lambda: kept.taken == [1] and not kept.open.is_set(), "the first is taken")
        kept.take = take  # type: ignore[method-assign]
        kept.open.set()
        await until(lambda: kept.taken == [1, 2], "the second is taken")
        assert kept.counts.polls_failed == 0


async def test_it_ends_in_the_middle_of_an_answer(at: Address, tmp_path: Path) -> None:
    async def never(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    at.instead = never
    async with polled(at.url, tmp_path / "log") as kept:
        await at.asked(1)
        await asyncio.wait_for(kept.close(), WITHIN_S)
        assert kept.taken == []


async def test_what_is_being_kept_when_it_ends_is_kept(at: Address, tmp_path: Path) -> None:
    at.items = ids(1)
    going, gone_on = asyncio.Event(), asyncio.Event()
    async with polled(at.url, tmp_path / "log") as kept:
        take = kept.take

        async def slowly(decoded: Sequence[DecodedRecord], seen: Sequence[bytes]) -> None:
            going.set()
            await gone_on.wait()
            await take(decoded, seen)

        kept.take = slowly  # type: ignore[method-assign]
        await going.wait()
        closing = asyncio.create_task(kept.close())
        await asyncio.wait((closing,), timeout=0.05)
        assert not closing.done()
        gone_on.set()
        await closing
        assert kept.taken == [1]
