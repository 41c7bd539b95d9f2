"""kill -9 of real cluster processes at every place of their channels' executions, under publishers that retry.

One life after the other on the same data. Whatever dies whenever: each record is told once to each interest that it
matches, as plain Python finds them, and executions are numbered without a gap.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.real_processes import ANSWER_S, ClusterHttpClient, ClusterProcess
from tests.support.waiting import wait_until
from tocsin import faults

EXECUTION = [point for point in faults.POINTS if point.startswith("channel.") and point != "channel.ahead.renewed"]
PUBLISHERS = 2
RECORDS = 4  # of each kind one
KINDS = "abcd"
SETUP = """
CREATE DATAVERSE v; USE v;
CREATE TYPE R AS { id: int, kind: string };
CREATE ACTIVE DATASET D(R) PRIMARY KEY id;
CREATE FEED F WITH {"adapter-name": "http_adapter", "type-name": "R"};
CONNECT FEED F TO DATASET D; START FEED F;
CREATE BROKER b AT "http://127.0.0.1:9/";
CREATE CONTINUOUS CHANNEL c(k) { SELECT VALUE d.id FROM D d WHERE is_new(d) AND d.kind = k };
CREATE CONTINUOUS CHANNEL p(k) PERIOD duration("PT0.2S") { SELECT VALUE d.id FROM D d WHERE is_new(d) AND d.kind = k };
"""


def kind(identity: int) -> str:
    return KINDS[identity % len(KINDS)]


class SubscribersOverLives:
    """What was sent and acknowledged, over all lives, and who has subscribed to what."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.acknowledged = [0] * PUBLISHERS
        self.subscribed: dict[str, tuple[str, str, list[int]]] = {}
        """Channel, kind, and how far publishers were: what they sent later is told."""

    # ------------------------------------------------------------ lives

    @contextmanager
    def life(self, crash_at: str | None = None) -> Iterator[ClusterProcess]:
        with ClusterProcess(self.data, crash_at=crash_at) as process:
            yield process.ready()

    def dies_publishing(self, process: ClusterProcess, kill_after: int | None = None) -> None:
        """Publishes to this cluster until it dies at its crash point, or after this many acknowledgements."""
        goal = sum(self.acknowledged) + (kill_after or 1_000)
        publishers = [threading.Thread(target=self._publish, args=(process.client, by)) for by in range(PUBLISHERS)]
        for publisher in publishers:
            publisher.start()
        if kill_after is not None:
            wait_until(lambda: sum(self.acknowledged) >= goal, "records are acknowledged", ANSWER_S)
            process.kill()
        for item in publishers:
            item.join(ANSWER_S)
        process.died()

    def _publish(self, client: ClusterHttpClient, by: int) -> None:
        try:
            while True:
                self.send(client, by)
        except (OSError, http.client.HTTPException):
            return

    def send(self, client: ClusterHttpClient, by: int) -> None:
        """Sends one request; the next call repeats it if it was not answered."""
        nth = self.acknowledged[by]
        body = json.dumps([{"id": identity, "kind": kind(identity)} for identity in identities(by, nth)]).encode()
        answer = client.ask("POST", "/v1/feeds/v.F", body, **{"Idempotency-Key": f"{by}.{nth}"})
        assert answer.status == 200, answer.body
        self.acknowledged[by] += 1

    def subscribe(self, client: ClusterHttpClient, channel: str, kind: str) -> str:
        (made,) = client.run(f'SUBSCRIBE TO v.{channel}("{kind}") ON v.b;').results
        name = str(made["subscription"])
        self.subscribed[name] = channel, kind, list(self.acknowledged)
        return name

    # ------------------------------------------------------------ what must be

    def check(self, client: ClusterHttpClient, channels: str) -> None:
        """Sends what was not answered, and looks at what everybody was told, once all is told."""
        for by in range(PUBLISHERS):
            self.send(client, by)
        sent = [
            identity
            for by in range(PUBLISHERS)
            for nth in range(self.acknowledged[by])
            for identity in identities(by, nth)
        ]
        for channel in channels:
            mine = {name: rest for name, (where, *rest) in self.subscribed.items() if where == channel}
            told = self.settled(client, channel, lambda told, mine=mine: all(
                max((record for record in sent if kind(record) == wanted), default=0) in told[name]
                for name, (wanted, _) in mine.items()
            ))  # fmt: skip
            for name, (wanted, since) in mine.items():
                matching = [record for record in sent if kind(record) == wanted]
                later = {record for record in matching if record >= identities(place(record), since[place(record)])[0]}
                assert not [record for record, count in told[name].items() if count > 1], (
                    f"{channel} told something twice"
                )
                assert later <= set(told[name]) <= set(matching), f"{channel}({wanted})"
            numbers = client.rows(
                f'SELECT VALUE e.Execution FROM Metadata.ChannelExecution e WHERE e.ChannelName = "{channel}" '
                "AND e.Reason IS MISSING;"
            )
            assert sorted(numbers) == list(range(1, len(numbers) + 1))

    def settled(
        self, client: ClusterHttpClient, channel: str, is_settled: Callable[[dict[str, Counter[Any]]], bool]
    ) -> dict[str, Counter[Any]]:
        """What each subscription was told, once that is so."""
        told: dict[str, Counter[Any]] = {}

        def look() -> bool:
            told.update({name: Counter() for name in self.subscribed})
            for name, result in client.rows(f"SELECT VALUE [r.subscriptionId, r.result] FROM v.{channel}Results r;"):
                told[name][result] += 1
            return is_settled(told)

        wait_until(look, f"{channel} has told all", ANSWER_S)
        return told


def identities(by: int, nth: int) -> list[int]:
    """The records of a publisher's nth request."""
    return [1_000_000 * by + RECORDS * nth + i for i in range(RECORDS)]


def place(identity: int) -> int:
    return identity // 1_000_000


def test_killed_at_any_place_every_record_is_told_once_to_each_interest(tmp_path: Path) -> None:
    data, rng = tmp_path / "data", random.Random(7)
    story = SubscribersOverLives(data)

    with story.life() as process:
        client = process.client
        assert client.run(SETUP).status == 200
        for channel, wanted in (("c", "a"), ("c", "a"), ("c", "b"), ("p", "a")):
            story.subscribe(client, channel, wanted)
        story.dies_publishing(process, kill_after=rng.randrange(20, 60))
    for point in EXECUTION:
        with story.life(f"{point}:{rng.randrange(3, 9)}") as process:
            story.dies_publishing(process)
    with story.life() as process:
        client = process.client
        story.subscribe(client, "c", "c")
        story.check(client, "cp")
        assert client.run("DROP CHANNEL v.c; DROP CHANNEL v.p; DROP DATAVERSE v;").status == 200
