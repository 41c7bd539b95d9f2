"""`tocsin subscribe` and `tocsin subscriber` against a broker in memory."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.commands import command
from tests.support.fake_broker import FakeBroker, listening
from tests.support.waiting import WITHIN_S, until
from tocsin.cli.commands import subscribe
from tocsin.cli.commands.subscribe import ResultPrinter, value_of
from tocsin.cli.main import main
from tocsin.sdk import Client
from tocsin.wire.cursors import Cursor, cursor_text


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with listening(FakeBroker(passwords={"ann": "secret"})) as broker:
        yield broker


async def test_results_are_printed_as_they_come_until_ctrl_c_and_then_do_not_come_again(broker: FakeBroker) -> None:
    arguments = ("subscribe", "v.c", "-41.29", "here", '["a"]', "--broker", broker.url, "--user", "eve", "--register")
    async with command(*arguments, TOCSIN_PASSWORD="hush") as one:
        assert await one.said() == 'subscribed to v.c[-41.29, "here", ["a"]] (sub_17); Ctrl-C stops'
        await until(lambda: bool(broker.sockets))
        broker.make(17, {"é": 1})
        assert (await one.line()).endswith('  {"é": 1}')
        broker.make(17, 2)
        assert (await one.line()).endswith("  2")
        one.interrupt()
        assert await one.ended() == (0, "", "")
    assert broker.interests[17].marker == broker.interests[17].head
    broker.make(17, 3, send=False)
    async with command(*arguments, "--format", "json", "--count", "1", "--drop", TOCSIN_PASSWORD="hush") as one:
        status, out, _ = await one.ended()
    assert status == 0
    assert json.loads(out)["result"] == 3
    assert json.loads(out)["cursor"].startswith("1763200000-")
    assert broker.interests == {}


def follow(broker: FakeBroker, form: Any = "json", count: int | None = 1, **options: Any) -> Any:
    """What the command does, in this process: its status, and what it prints."""

    async def run() -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        async with Client(broker.url, "ann", "secret", ack="manual") as client:
            made = await client.subscribe("v.c", [1], **options)
            async with asyncio.timeout(WITHIN_S):
                status = await subscribe.follow(client, made, ResultPrinter(form, out, err), count)
        return status, out.getvalue(), err.getvalue()

    return run()


async def test_of_a_users_subscriptions_only_the_named_one_is_printed_and_acknowledged(broker: FakeBroker) -> None:
    async with Client(broker.url, "ann", "secret") as client:
        await client.subscribe("v.other", [1])
    broker.make(17, "another's", send=False)
    running = asyncio.create_task(follow(broker, count=2))
    await until(lambda: bool(broker.sockets))
    broker.make(18, "mine", "mine, too")
    _, out, _ = await running
    assert [json.loads(line)["result"] for line in out.splitlines()] == ["mine", "mine, too"]
    assert broker.interests[18].marker == broker.interests[18].head
    assert broker.interests[17].marker < broker.interests[17].head


async def test_who_is_only_told_pulls_and_prints(broker: FakeBroker) -> None:
    running = asyncio.create_task(follow(broker, count=2, mode="notify"))
    await until(lambda: bool(broker.sockets))
    broker.make(17, "a", "b")
    status, out, _ = await running
    assert status == 0
    assert [json.loads(line)["result"] for line in out.splitlines()] == ["a", "b"]
    assert broker.interests[17].marker == broker.interests[17].head


async def test_gaps_and_the_end_are_told(broker: FakeBroker) -> None:
    running = asyncio.create_task(follow(broker, "text", None))
    await until(lambda: bool(broker.sockets))
    broker.make(17, "gone", send=False)
    broker.make(17, "\x1b[31mred", send=False)
    one = broker.interests[17]
    one.lost = one.results[0][0]
    broker.tell(one, Cursor(0, 0, 0))
    broker.end(17, "the channel is gone")
    status, out, err = await running
    assert status == 1
    assert out.endswith('  "\\u001b[31mred"\n')
    assert f"results up to {cursor_text(one.lost)} that were not delivered are lost" in err
    assert "the subscription has ended: the channel is gone" in err


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-1.5", -1.5),
        ("true", True),
        ("null", None),
        ("[1, 2]", [1, 2]),
        ('"1"', "1"),
        ("flood", "flood"),
        ("NaN", "NaN"),
        ("", ""),
        ("33.6,-117.8", "33.6,-117.8"),
    ],
)
def test_a_parameter_is_json_where_it_can_be(text: str, value: Any) -> None:
    assert value_of(text) == value


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["v.c"], "--user is missing"),
        (["v.c", "--user", "ann"], "the password of ann is missing"),
        (["v.c", "--user", "ann", "--password", "x", "--count", "0"], "--count: must be above 0"),
        (["v.c", "--user", "ann", "--password", "x", "--since", "yesterday"], "expected a cursor"),
        (["v.c", "--user", "ann", "--password", "x", "--broker", "ftp://x"], "ftp://x is not an address"),
    ],
)
def test_what_is_wrong_with_the_command_line_is_told(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(SystemExit) as status:
        main(["subscribe", *arguments])
    assert status.value.code == 1
    assert said in capsys.readouterr().err


def test_where_no_broker_is_the_status_is_2(unused_tcp_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["subscribe", "v.c", "--user", "ann", "--password", "x"], ["subscriber", "list"]):
        with pytest.raises(SystemExit) as status:
            main([*words, "--broker", f"http://127.0.0.1:{unused_tcp_port}"])
        assert status.value.code == 2
        assert "no broker answers" in capsys.readouterr().err


async def test_subscribers_are_listed_and_shown(broker: FakeBroker, capsys: pytest.CaptureFixture[str]) -> None:
    broker.tokens["operator"] = ""
    async with Client(broker.url, "ann", "secret") as client:
        await client.subscribe("v.c", ["flood"])

    async def printed(*words: str) -> list[str]:
        with pytest.raises(SystemExit) as status:
            await asyncio.to_thread(main, ["subscriber", *words, "--broker", broker.url, "--token", "operator"])
        assert status.value.code == 0
        return capsys.readouterr().out.splitlines()

    assert [line.split() for line in await printed("list")] == [["REGISTERED", "USER"], ["ann"]]
    assert [json.loads(line)["user"] for line in await printed("list", "--json")] == ["ann"]
    shown = await printed("show", "ann")
    assert shown[0].split() == ["user", "ann"]
    assert shown[-1].split() == ["sub_17", "inline", 'v.c["flood"]']
    assert json.loads((await printed("show", "ann", "--json"))[0])["subscriptions"][0]["parameters"] == ["flood"]
