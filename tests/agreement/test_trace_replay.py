"""A live broker and its core under virtual time: fed with its trace, the core makes the same hits and evictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.support.in_process_broker import InProcessBroker, Listener, both
from tests.support.sparkless_cluster import SparklessCluster, world
from tests.support.waiting import until
from tocsin.broker.core import events as ev
from tocsin.broker.core.broker import Broker
from tocsin.broker.core.settings import CoreSettings
from tocsin.broker.trace import BrokerTrace
from tocsin.cli.commands import lab as cli_lab
from tocsin.lab.simulators.trace_replay import event_of, replay_trace
from tocsin.rules.caching.entries import BrokerResult
from tocsin.rules.caching.settings import CachingSettings
from tocsin.rules.model.cursors import Cursor
from tocsin.wire.errors import InputError

POLICIES = ["lsc+never", "lru+never", "worth+never", "saving+never", "s3fifo+never", "exp+ttl"]


async def live(here: SparklessCluster, made: InProcessBroker, turns: int) -> None:
    """Subscribers who come and go while results are made, under one policy after the other."""
    channel = await here.channel("c")
    people = [f"p{number}" for number in range(3)]
    held: dict[str, int] = {}
    for number, name in enumerate(people):
        await made.user(name)
        # Two share an interest; who is away pulls later what the others got at once.
        mode = "notify" if number == 1 else "inline"
        held[name] = int((await made.subscribe(name, "v.c", number // 2, mode=mode))["interest"])
    caches = made.parts.runtime.core.caches
    total = caches.counters.arrived
    for turn in range(turns):
        async with Listener(made.url, made.tokens[people[0]]) as listener:
            before = len(listener.events)
            wanted = total = total + 2 * len(set(held.values()))
            made_now = [{"n": turn, "pad": "x" * (17 * turn % 120)}, {"n": -turn}]
            await here.execute(channel, dict.fromkeys(set(held.values()), made_now))
            await until(lambda wanted=wanted: caches.counters.arrived == wanted)
            await listener.until(lambda before=before, seen=listener.events: len(seen) > before)
            await listener.ack(str(held[people[0]]), listener.events[-1]["data"]["to"])
        if turn % 3 == 2:
            async with Listener(made.url, made.tokens[people[2]]) as back:
                await back.until(lambda seen=back.events: bool(seen))
                await back.ack(str(held[people[2]]), back.events[-1]["data"]["to"])


@pytest.mark.parametrize("policy", POLICIES)
async def test_the_core_fed_with_a_live_trace_does_what_the_live_broker_did(
    policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "events.jsonl"
    eviction, _, expiry = policy.partition("+")
    chosen: dict[str, Any] = {"cache__budget_bytes": 500, "cache__eviction": eviction, "cache__expiry": expiry}
    if expiry == "ttl":
        chosen["cache__ttl_first_s"] = 0.05
    async with world(tmp_path / "cluster") as here, both(tmp_path / "broker", here, trace=trace, **chosen) as made:
        await live(here, made, 9)
    done = replay_trace(trace)
    assert done.differences == ()
    assert done.compared >= 1
    assert done.figures.evicted + done.figures.expired > 0
    assert done.figures.hits + done.figures.pushed > 0
    assert done.policy == f"all+{policy}"
    assert cli_lab.replay_trace(trace) == 0
    assert "\nthe same as the live broker" in "\n" + capsys.readouterr().err


def test_every_event_comes_out_of_a_trace_as_it_went_in(tmp_path: Path) -> None:
    at, results = Cursor(1, 2, 3), (BrokerResult(Cursor(1, 2, 4), 5),)
    fetched = ev.FetchSucceeded(7, at, results, 0.5, Cursor(1, 1, 0))
    happened: list[ev.BrokerEvent] = [
        ev.SubscribeRequested(1, "a", 2, None, ev.Mode.NOTIFY),
        ev.UnsubscribeRequested(1),
        ev.SubscriberLoggedIn("a"),
        ev.SubscriberLoggedOut("a"),
        ev.ResultsRequested(2, (1, 3), at),
        ev.ResultsRequestedByMany((1, 3)),
        ev.ResultsAcknowledged(2, at, (1, 3)),
        ev.ResultsAcknowledgedByMany(((1, at), (3, at))),
        ev.SubscriberFellBehind(1, at),
        ev.SubscriberReady(1),
        ev.BackendSubscribed(2, at),
        ev.BackendSubscriptionLost(2, "why"),
        ev.ResultArrived(2, at, 9),
        ev.ResultsAnnounced(2, at),
        fetched,
        ev.FetchesSucceeded((fetched, ev.FetchSucceeded(8, at, (), 0.1))),
        ev.FetchFailed(7),
        ev.TimePassed(),
        ev.CachePoliciesChanged(CachingSettings(budget_bytes=9, eviction="lru")),
    ]
    assert {type(event) for event in happened} == set(get_args(ev.BrokerEvent)), "one of each"
    path = tmp_path / "t.jsonl"
    trace = BrokerTrace(path, Broker(CoreSettings(caching=CachingSettings(budget_bytes=9)), 0.0), 0.0)
    for event in happened:
        trace.record(event, 1.0)
    trace.close(2.0)
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()[1:-1]]
    assert [line.pop("at_s") for line in lines] == [1.0] * len(happened)
    assert [event_of(line) for line in lines] == happened


def test_a_core_that_does_something_else_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"budget_bytes": 100, "eviction": "fifo"}
    figures = {"hits": 1, "evicted": 0}
    lines: list[dict[str, Any]] = [
        {"settings": {"caching": settings}, "policy": "all+fifo+never"},
        {"at_s": 0.0, "event": "SubscribeRequested", "subscription": 1, "subscriber": "a", "interest": 1, "since": None,
         "mode": "notify"},
        {"at_s": 0.1, "event": "BackendSubscribed", "interest": 1, "since": [0, 0, 0]},
        {"at_s": 0.2, "event": "ResultArrived", "interest": 1, "cursor": [1, 1, 0], "size_bytes": 60},
        {"at_s": 0.3, "event": "ResultArrived", "interest": 1, "cursor": [1, 2, 0], "size_bytes": 60},
        {"at_s": 0.4, "policy": "all+fifo+never", "counters": figures, "resident_bytes": 60},
    ]  # fmt: skip
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"at_s": 0.5, "eve', "utf-8")
    done = replay_trace(path)
    assert [difference.split(": ")[1] for difference in done.differences] == ["hits 0, live 1", "evicted 1, live 0"]
    assert cli_lab.replay_trace(path) == 1
    assert "NOT the same" in capsys.readouterr().err


def test_figures_of_a_minute_are_of_what_was_written_before_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, at = tmp_path / "t.jsonl", Cursor(1, 1, 0)
    core = Broker(CoreSettings(caching=CachingSettings(budget_bytes=100)), 1_000.0)
    trace = BrokerTrace(path, core, 1_000.0)
    events = [
        ev.SubscribeRequested(1, 1, 1, None, ev.Mode.NOTIFY),
        ev.BackendSubscribed(1, Cursor(0, 0, 0)),
        ev.ResultArrived(1, at, 60),
    ]
    for place, event in enumerate(events):
        # Each after a minute: figures are due before every one.
        now_s = 1_061.0 + 61 * place
        trace.record(event, now_s)
        core.handle(event, now_s)
    trace.flush()
    done = replay_trace(path)
    assert (done.compared, done.differences, done.figures.arrived) == (3, (), 1)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[2])
    assert not replay_trace(path).same
    assert cli_lab.replay_trace(path) == 1, "a broker that was killed in its first minute wrote no figures"
    assert "nothing was compared" in capsys.readouterr().err
    trace.close(now_s)


@pytest.mark.parametrize(
    "text", ["", "no JSON\n", '{"settings": {"no": 1}}\n', '{"settings": {"caching": {}}}\n{"at_s": 1}\n']
)
def test_what_is_no_trace_of_a_broker_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(text, "utf-8")
    with pytest.raises(InputError, match=r"t\.jsonl"):
        replay_trace(path)
