"""Records sent to a feed are judged one by one."""

from __future__ import annotations

import gzip

import pytest

from tests.support.fake_cluster import FakeFeeds, FakeStatements, serving
from tests.unit.cluster.http.http_requests import ask


async def test_records_are_judged_one_by_one_and_the_answer_says_how() -> None:
    feeds = FakeFeeds()
    async with serving(FakeStatements(), feeds=feeds) as url:
        status, said, _ = await ask(
            url, path="/v1/feeds/News?wait=visible", data=b'{"id": 1}\n{"id": "x"}', headers={"Idempotency-Key": "k1"}
        )
        assert (status, said["accepted"]) == (200, 1)
        assert [(rejection["index"], rejection["field"]) for rejection in said["rejected"]] == [(1, "id")]
        assert feeds.taken == [("News", b'{"id": 1}\n{"id": "x"}', "k1", True)]
        status, said, _ = await ask(url, path="/v1/feeds/News", data=b'{"id": "x"}')
        assert (status, said["accepted"], len(said["rejected"])) == (422, 0, 1)


async def test_records_may_come_compressed() -> None:
    feeds = FakeFeeds()
    packed = gzip.compress(b'[{"id": 1}, {"id": 2}]')
    headers = {"Content-Encoding": "gzip"}
    async with serving(FakeStatements(), feeds=feeds, body_limit_bytes=10_000) as url:
        status, said, _ = await ask(url, path="/v1/feeds/News", data=packed, headers=headers)
        assert (status, said) == (200, {"accepted": 2, "rejected": []})
        for body, expected in ((packed[:-3], 400), (b"no gzip", 400), (gzip.compress(b" " * 1_000_000), 413)):
            assert (await ask(url, path="/v1/feeds/News", data=body, headers=headers))[0] == expected
    assert len(feeds.taken) == 1


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/feeds/Nowhere", b'{"id": 1}', 404),
        ("/v1/feeds/Stopped", b'{"id": 1}', 409),
        ("/v1/feeds/News?wait=forever", b'{"id": 1}', 400),
        ("/v1/feeds/News?wait=visible&format=csv", b'{"id": 1}', 400),
        ("/v1/feeds/News", b"", 400),
        ("/v1/feeds/News", b"{", 400),
        ("/v1/feeds/News", b"\xff", 400),
        ("/v1/feeds/News", b"[" * 100_000, 400),
    ],
)
async def test_what_a_feed_cannot_take_is_refused_and_taken_by_none(path: str, body: bytes, status: int) -> None:
    feeds = FakeFeeds()
    async with serving(FakeStatements(), feeds=feeds) as url:
        assert (await ask(url, path=path, data=body))[0] == status
    assert feeds.taken == []
