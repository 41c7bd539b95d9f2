"""`tocsin publish` against a server that takes records and only remembers them."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.support.waiting import WITHIN_S
from tocsin.cli.client import ClusterConnection, NoClusterError
from tocsin.cli.commands import publish
from tocsin.cli.commands.publish import RecordPublisher
from tocsin.cli.main import main
from tocsin.cli.records import RecordFormat, cutter
from tocsin.serving.application import bind_socket
from tocsin.wire.errors import ConflictError, InputError, LimitError


@dataclass
class FakeFeed:
    """Takes lines as JSON, each record once per key; answers `first` with these statuses before it does."""

    first: list[int] = field(default_factory=list)
    lost: int = 0
    """How many bodies are stored without an answer."""
    code: str = "limit"
    raw: bool = False
    """Counts each line of a body as a record, except for the header."""
    written: dict[str, Any] = field(default_factory=lambda: {"format": "json"})
    empty: bool = False
    """No record is ever found."""
    bodies: list[bytes] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    kept: dict[str, list[Any]] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=set)
    waited: list[str] = field(default_factory=list)
    """The keys of requests that wait until queries see their records."""

    @property
    def records(self) -> list[Any]:
        return [record for batch in self.kept.values() for record in batch]

    async def describe(self, request: web.Request) -> web.Response:
        assert request.match_info["name"] == "emergency.News"
        return web.json_response({"feed": "emergency.News", "adapter": "http_adapter", **self.written})

    async def take(self, request: web.Request) -> web.StreamResponse:
        assert request.match_info["name"] == "emergency.News"
        body, key = await request.read(), request.headers["Idempotency-Key"]
        self.bodies.append(body)
        self.keys.append(key)
        if request.query.get("wait") == "visible":
            self.waited.append(key)
        self.tokens.add(request.headers.get("Authorization", ""))
        if self.first:
            error = {"code": self.code, "message": "not now", "retry": True}
            return web.json_response({"error": error}, status=self.first.pop(0), headers={"Retry-After": "3"})
        if self.empty:
            return web.json_response({"accepted": 0, "rejected": []}, status=422)
        if self.raw:
            self.kept[key] = [body]
            rows = body.count(b"\n") - bool(self.written.get("header"))
            return web.json_response({"accepted": rows, "rejected": []})
        accepted, rejected = [], []
        for index, line in enumerate(body.splitlines()):
            try:
                record = json.loads(line)
            except ValueError:
                rejected.append({"index": index, "field": "", "reason": "no JSON"})
                continue
            if record["id"] == "bad":
                rejected.append({"index": index, "field": "id", "reason": "expected a bigint\x1b[31m"})
            else:
                accepted.append(record)
        if rejected and not accepted and rejected[0]["reason"] == "no JSON":
            said = {"code": "bad_request", "message": "the body cannot be read"}
            return web.json_response({"error": said}, status=400)
        self.kept.setdefault(key, accepted)
        if self.lost:
            self.lost -= 1
            assert request.transport is not None
            request.transport.close()
        status = 422 if rejected and not accepted else 200
        return web.json_response({"accepted": len(accepted), "rejected": rejected}, status=status)


@asynccontextmanager
async def serving(feed: FakeFeed) -> AsyncIterator[str]:
    async def alive(_request: web.Request) -> web.Response:
        return web.json_response({"status": "alive"})

    app = web.Application(client_max_size=1 << 26)
    app.add_routes(
        [
            web.post("/v1/feeds/{name}", feed.take),
            web.get("/v1/feeds/{name}", feed.describe),
            web.get("/healthz", alive),
        ]
    )
    runner = web.AppRunner(app)
    await runner.setup()
    with bind_socket("127.0.0.1", 0) as (sock, address):
        await web.SockSite(runner, sock).start()
        try:
            yield address
        finally:
            await runner.cleanup()


async def run(url: str, *arguments: str) -> int:
    def command() -> int:
        with pytest.raises(SystemExit) as ended:
            main(["publish", "emergency.News", *arguments, "--url", url])
        assert isinstance(ended.value.code, int)
        return ended.value.code

    return await asyncio.to_thread(command)


@asynccontextmanager
async def publishing(
    feed: FakeFeed, *, err: io.StringIO | None = None, **options: Any
) -> AsyncIterator[tuple[Callable[..., Any], list[float]]]:
    """A function that publishes a text, and the pauses it made, which take no time."""
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async with serving(feed) as url, ClusterConnection(url) as client:

        async def take(text: bytes, form: RecordFormat = "json") -> RecordPublisher:
            publisher = RecordPublisher(client, "emergency.News", err=err or io.StringIO(), pause=pause, **options)
            await publisher.publish(chunks(text), cutter(form))
            return publisher

        yield take, pauses


async def chunks(*texts: bytes | None) -> AsyncIterator[bytes | None]:
    for text in texts:
        yield text


def lines(count: int) -> bytes:
    return b"".join(b'{"id": %d}\n' % number for number in range(count))


# ---------------------------------------------------------------- the command


async def test_a_file_is_sent_in_batches_each_under_a_key_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    feed = FakeFeed()
    (tmp_path / "news.json").write_bytes(lines(25))
    async with serving(feed) as url:
        assert await run(url, str(tmp_path / "news.json"), "--batch", "10", "--token", "tocsin_ada") == 0
    assert feed.records == [{"id": number} for number in range(25)]
    assert [body.count(b"\n") for body in feed.bodies] == [10, 10, 5]
    assert len(set(feed.keys)) == 3
    assert feed.tokens == {"Bearer tocsin_ada"}
    out, err = capsys.readouterr()
    assert out.startswith("emergency.News: 25 accepted, 0 rejected (")
    assert err == ""


async def test_the_last_batch_is_asked_for_again_until_queries_see_it(tmp_path: Path) -> None:
    feed = FakeFeed()
    (tmp_path / "news.json").write_bytes(lines(25) + b"no record\n")
    async with serving(feed) as url:
        assert await run(url, str(tmp_path / "news.json"), "--batch", "5", "--visible") == 1
    assert feed.records == [{"id": number} for number in range(25)]
    # The one after it kept nothing: there is nothing to wait for.
    assert feed.waited == [feed.keys[4]] == [feed.keys[-1]]


@pytest.mark.parametrize("arguments", [("-",), ()])
async def test_records_come_from_standard_input(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = FakeFeed()
    (tmp_path / "in").write_bytes(b'[{"id": 1},\n {"id": 2}]')
    with (tmp_path / "in").open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        async with serving(feed) as url:
            assert await run(url, *arguments) == 0
    assert feed.records == [{"id": 1}, {"id": 2}]


async def test_rejected_records_are_listed_by_their_place_in_the_whole_and_exit_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    feed = FakeFeed()
    (tmp_path / "news.json").write_bytes(lines(3) + b'{"id": "bad"}\n' + lines(2))
    async with serving(feed) as url:
        assert await run(url, str(tmp_path / "news.json"), "--batch", "2") == 1
    out, err = capsys.readouterr()
    assert err == "rejected record 4: id: expected a bigint\\x1b[31m\n"
    assert "5 accepted, 1 rejected" in out
    assert len(feed.records) == 5


async def test_without_a_cluster_it_says_so_and_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with bind_socket("127.0.0.1", 0) as (_, address):
        pass
    assert await run(address, __file__) == 2
    assert "no cluster answers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("nowhere.json",), "nowhere.json: No such file"), ((__file__, "--batch", "0"), "--batch: must be from 1")],
)
async def test_a_wrong_argument_is_named(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    feed = FakeFeed()
    async with serving(feed) as url:
        assert await run(url, *arguments) == 1
    assert said in capsys.readouterr().err
    assert feed.bodies == []


async def test_what_was_acknowledged_before_an_error_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    feed = FakeFeed(written={"format": "adm"})
    (tmp_path / "news.json").write_bytes(b'{"id": 1\n}\n{"id": 2}\nnonsense\n')
    async with serving(feed) as url:
        assert await run(url, str(tmp_path / "news.json"), "--format", "adm", "--batch", "1") == 1
    err = capsys.readouterr().err
    assert "1 records were acknowledged before this:" in err
    assert "line 4: expected a record that begins with {" in err


async def test_who_interrupts_it_is_told_how_far_it_came(capsys: pytest.CaptureFixture[str]) -> None:
    feed = FakeFeed()
    reading, writing = os.pipe()
    try:
        async with serving(feed) as url:
            sending = publish.publish_input(
                ClusterConnection(url), "emergency.News", reading, form=None, batch=2, visible=False
            )
            task = asyncio.create_task(sending)
            os.write(writing, lines(4))
            async with asyncio.timeout(WITHIN_S):
                while len(feed.records) < 4:
                    await asyncio.sleep(0.01)
                # The answer may still be on its way: what was acknowledged is what it knows of.
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
    finally:
        os.close(writing)
    err = capsys.readouterr().err
    assert "interrupted: " in err
    assert "records were acknowledged" in err


# ---------------------------------------------------------------- again


@pytest.mark.parametrize("status", [429, 503, 507])
async def test_a_batch_is_sent_again_under_its_key_while_the_cluster_is_behind(status: int) -> None:
    feed = FakeFeed(first=[status, status])
    async with publishing(feed, batch=10) as (take, pauses):
        publisher = await take(lines(15))
    assert (publisher.accepted, publisher.rejected) == (15, 0)
    assert feed.keys[0] == feed.keys[1] == feed.keys[2] != feed.keys[3]
    assert 3.1 <= pauses[0] <= 3.2 <= pauses[1] <= 3.4


async def test_a_batch_whose_answer_was_lost_is_kept_once() -> None:
    feed = FakeFeed(lost=2)
    async with publishing(feed, batch=10) as (take, pauses):
        publisher = await take(lines(15))
    assert (publisher.accepted, len(feed.records)) == (15, 15)
    assert len(feed.bodies) == 4
    assert 0.1 <= pauses[0] <= 0.2 <= pauses[1] <= 0.4


async def test_patience_ends() -> None:
    feed = FakeFeed(first=[429] * 100)
    async with publishing(feed, patience_s=0.0) as (take, _):
        with pytest.raises(LimitError, match="not now"):
            await take(lines(1))
    assert len(feed.bodies) == 1


async def test_a_cluster_that_goes_away_for_good_is_an_error() -> None:
    with bind_socket("127.0.0.1", 0) as (_, address):
        pass
    async with ClusterConnection(address) as client:
        publisher = RecordPublisher(client, "emergency.News", err=io.StringIO(), patience_s=0.0)
        with pytest.raises(NoClusterError):
            await publisher.publish(chunks(lines(1)), cutter("json"))


async def test_a_stopped_feed_is_not_asked_twice() -> None:
    feed = FakeFeed(first=[409], code="conflict")
    async with publishing(feed) as (take, _):
        with pytest.raises(ConflictError):
            await take(lines(1))
    assert len(feed.bodies) == 1


# ---------------------------------------------------------------- batches


async def test_a_batch_in_which_nothing_can_be_read_is_rejected_and_the_next_ones_pass() -> None:
    feed, err = FakeFeed(), io.StringIO()
    async with publishing(feed, batch=2, err=err) as (take, _):
        publisher = await take(lines(2) + b'{"id"\n{"id"\n' + lines(1))
    assert (publisher.accepted, publisher.rejected) == (3, 2)
    assert err.getvalue() == "rejected records 3 to 4: the body cannot be read\n"


async def test_what_stands_before_an_unreadable_place_is_sent() -> None:
    feed = FakeFeed()
    async with publishing(feed) as (take, _):
        with pytest.raises(InputError, match="line 3"):
            await take(b'[{"id": 1},\n{"id": 2},\nnonsense')
    assert [record["id"] for record in feed.records] == [1, 2]


async def test_a_quiet_pipe_has_its_records_sent_before_the_batch_is_full() -> None:
    feed = FakeFeed()
    seen: list[int] = []

    async def slowly() -> AsyncIterator[bytes | None]:
        yield lines(2)
        yield None
        seen.append(len(feed.records))
        yield lines(1)

    async with serving(feed) as url, ClusterConnection(url) as client:
        await RecordPublisher(client, "emergency.News", err=io.StringIO()).publish(slowly(), cutter("json"))
    assert seen == [2]
    assert len(feed.records) == 3


@pytest.mark.parametrize("form", ["csv", "delimited-text"])
@pytest.mark.parametrize("arguments", [(), ("--format",)])
async def test_whether_lines_have_a_header_is_the_feeds_to_say(
    tmp_path: Path, form: str, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "news.csv").write_bytes(b'id,text\n1,"two\nlines"\n2,b\n3,c')
    bodies = {}
    for header in (True, False):
        feed = FakeFeed(raw=True, written={"format": form, "header": header, "quote": '"'})
        given = [*arguments, form] if arguments else []
        async with serving(feed) as url:
            assert await run(url, str(tmp_path / "news.csv"), "--batch", "2", *given) == 0
        bodies[header] = feed.bodies
    assert bodies[True] == [b'id,text\n1,"two\nlines"\n2,b\n', b"id,text\n3,c\n"]
    assert bodies[False] == [b'id,text\n1,"two\nlines"\n', b"2,b\n3,c\n"]


async def test_a_mark_that_quotes_nothing_joins_no_lines(tmp_path: Path) -> None:
    feed = FakeFeed(raw=True, written={"format": "csv", "header": False, "quote": ""})
    (tmp_path / "news.csv").write_bytes(b'1,5" pipe\n2,b\n')
    async with serving(feed) as url:
        assert await run(url, str(tmp_path / "news.csv"), "--batch", "1") == 0
    assert feed.bodies == [b'1,5" pipe\n', b"2,b\n"]


async def test_another_format_than_the_feeds_is_refused_and_nothing_is_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    feed = FakeFeed()
    (tmp_path / "news.csv").write_bytes(b"id\n1\n")
    async with serving(feed) as url:
        assert await run(url, str(tmp_path / "news.csv"), "--format", "csv") == 1
    assert "the feed emergency.News takes json, not csv" in capsys.readouterr().err
    assert feed.bodies == []


async def test_what_is_neither_accepted_nor_rejected_does_not_end_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "news.json").write_bytes(lines(3))
    async with serving(FakeFeed(empty=True)) as url:
        assert await run(url, str(tmp_path / "news.json")) == 1
    assert "3 records were neither accepted nor rejected" in capsys.readouterr().err


async def test_a_compressed_file_is_not_taken_for_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    feed = FakeFeed()
    (tmp_path / "news.json.gz").write_bytes(gzip.compress(lines(3)))
    async with serving(feed) as url:
        assert await run(url, str(tmp_path / "news.json.gz")) == 1
    assert "gzip -dc FILE | tocsin publish FEED" in capsys.readouterr().err
    assert feed.bodies == []


async def test_long_records_are_sent_before_a_batch_is_full() -> None:
    feed = FakeFeed()
    async with publishing(feed, body_bytes=100) as (take, _):
        await take(lines(50))
    assert len(feed.bodies) > 3
    assert max(map(len, feed.bodies)) <= 150


# ---------------------------------------------------------------- cutting


def cut(form: RecordFormat, *pieces: bytes) -> list[bytes]:
    made = cutter(form)
    return [record for piece in pieces for record in made.feed(piece)] + list(made.finish())


values = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
records = st.lists(st.dictionaries(st.text('a{}"\\\n', max_size=4), values, max_size=4), min_size=1, max_size=6)


@given(records=records, form=st.sampled_from(["array", "lines", "pretty"]), data=st.data())
def test_json_is_cut_into_its_records_however_it_is_written_and_comes(
    records: list[Any], form: str, data: st.DataObject
) -> None:
    # A record that is a whole first line says that each line is one.
    assume(form != "pretty" or records[0])
    written = {
        "array": lambda: json.dumps(records, indent=1),
        "lines": lambda: "\n".join(map(json.dumps, records)),
        "pretty": lambda: "\n".join(json.dumps(record, indent=2) for record in records),
    }
    text = written[form]().encode()
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[begin:end] for begin, end in zip([0, *places], [*places, len(text)], strict=True)]
    assert [json.loads(record) for record in cut("json", *pieces)] == records


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        ("json", b"", []),
        ("json", b"\xef\xbb\xbf \n[]", []),
        ("json", b'{"a": 1}\n\n{"broken\n{"a": 2}', [b'{"a": 1}', b'{"broken', b'{"a": 2}']),
        ("json", b'{"a": "}{"}', [b'{"a": "}{"}']),
        ("adm", b'{"p": point("1,2")}, {"s": {{ 1, 2 }}}', [b'{"p": point("1,2")}', b'{"s": {{ 1, 2 }}}']),
        ("csv", b'a,b\r\n1,"x\n\ny"\n\n2,"q""q"', [b"a,b\r", b'1,"x\n\ny"', b'2,"q""q"']),
        ("delimited-text", b'1,"never\nends', [b'1,"never\nends']),
        ("xml", b"<r>\n<a/>\n</r>\n", [b"<r>\n<a/>\n</r>\n"]),
    ],
)
def test_each_format_is_cut_in_its_own_way(form: RecordFormat, text: bytes, expected: list[bytes]) -> None:
    assert cut(form, text) == expected
    assert cut(form, *(text[at : at + 1] for at in range(len(text)))) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [(b'{"a": 1}\n nonsense', "line 2"), (b'\n{"a": {', "begins on line 2"), (b'[{"a": "', "begins on line 1")],
)
def test_what_is_no_record_is_refused_with_its_line(text: bytes, said: str) -> None:
    with pytest.raises(InputError, match=said):
        cut("adm", text)
