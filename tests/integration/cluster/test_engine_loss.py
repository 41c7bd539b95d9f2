"""A JVM that hangs, dies or is busy for ever, under publishers, subscriptions and files: the cluster goes on by itself.

What needs no engine never notices. What does is told to come again, or comes again by itself: each record is told once
to each interest, each file lands once, and a change happens wholly or not at all.
"""

from __future__ import annotations

import json
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.real_processes import ANSWER_S, ClusterHttpClient, ClusterProcess
from tests.support.waiting import wait_until

# Sooner than by default: what is tested is what happens then.
QUICK = {"TOCSIN_CLUSTER__SPARK__PING_TIMEOUT_S": "6", "TOCSIN_CLUSTER__SPARK__UNSTOPPABLE_LIMIT": "1"}
ENDLESS = "SELECT VALUE {'id': a.id} FROM range(100000000) a, range(100000000) b WHERE a.id % 7 = b.id % 5 + 9"
# One value, of a fold within a fold, takes a time longer than anybody lives, and Spark hears nothing meanwhile.
UNSTOPPABLE = """
SELECT VALUE aggregate(sequence(1, 1000000), 0, (a, x) -> a + aggregate(sequence(1, 1000000), 0, (b, y) -> (b + y) % 7))
"""
LOADED_ROWS = 200_000
SETUP = """
CREATE DATAVERSE v; USE v;
CREATE TYPE R AS { id: int, kind: string };
CREATE TYPE Row AS { id: int };
CREATE ACTIVE DATASET D(R) PRIMARY KEY id;
CREATE DATASET Doubled(R) PRIMARY KEY id;
CREATE DATASET FromFiles(Row) PRIMARY KEY id;
CREATE DATASET Loaded(Row) PRIMARY KEY id;
CREATE FUNCTION doubled(r) { {"id": 2 * r.id, "kind": r.kind} };
CREATE FEED F WITH {"adapter-name": "http_adapter", "type-name": "R"};
CONNECT FEED F TO DATASET D; CONNECT FEED F TO DATASET Doubled APPLY FUNCTION doubled; START FEED F;
CREATE FEED Files WITH {"adapter-name": "localfs", "path": "%s", "type-name": "Row", "format": "json", "period": "0.2"};
CONNECT FEED Files TO DATASET FromFiles; START FEED Files;
CREATE BROKER b AT "http://127.0.0.1:9/";
CREATE CONTINUOUS CHANNEL c(k) { SELECT VALUE d.id FROM D d WHERE is_new(d) AND d.kind = k };
CREATE CONTINUOUS CHANNEL p(k) PERIOD duration("PT0.2S") { SELECT VALUE d.id FROM D d WHERE is_new(d) AND d.kind = k };
SUBSCRIBE TO c("even") ON b; SUBSCRIBE TO p("odd") ON b;
"""


@dataclass
class Load:
    """Publishes records and puts files down, one after the other, until it is told to end. All must be taken."""

    client: ClusterHttpClient
    incoming: Path
    sent: int = 0
    files: int = 0
    refused: list[bytes] = field(default_factory=list)
    ending: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Load:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ending.set()
        self._thread.join(ANSWER_S)

    def _run(self) -> None:
        while not self.ending.wait(0.05):
            number = self.sent
            record = {"id": number, "kind": "odd" if number % 2 else "even"}
            answer = self.client.ask("POST", "/v1/feeds/v.F", json.dumps(record).encode())
            if answer.status != 200:
                self.refused.append(answer.body)
                return
            self.sent += 1
            if number % 5 == 0:
                part = self.incoming / f".{self.files}"
                part.write_text(json.dumps({"id": self.files}))
                part.rename(self.incoming / f"{self.files}.json")
                self.files += 1


@pytest.fixture
def incoming(tmp_path: Path) -> Path:
    folder = tmp_path / "incoming"
    folder.mkdir()
    return folder


@pytest.fixture
def running(tmp_path: Path, incoming: Path) -> Iterator[ClusterProcess]:
    with ClusterProcess(tmp_path / "data", **QUICK) as process:
        process.ready()
        answer = process.client.run(SETUP % incoming)
        assert answer.status == 200, answer.body
        yield process


def java(process: ClusterProcess) -> psutil.Process:
    (found,) = [child for child in psutil.Process(process.pid).children() if child.name() == "java"]
    return found


def figure(client: ClusterHttpClient, name: str) -> float:
    lines = client.ask("GET", "/metrics").body.decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.partition(" ")[0].partition("{")[0] == name)


def run_told(client: ClusterHttpClient, script: str) -> tuple[int, str | None]:
    """The answer's status, and when to come again."""
    connection = client.connection()
    try:
        connection.request("POST", "/v1/statements", script, {"Content-Type": "text/plain"})
        response = connection.getresponse()
        response.read()
        return response.status, response.headers["Retry-After"]
    finally:
        connection.close()


def outlive(client: ClusterHttpClient, replacements: int) -> Counter[tuple[str, int]]:
    """Repeats all requests until this many engines were replaced and the last one runs. Returns the answers."""
    seen: Counter[tuple[str, int]] = Counter()

    def look() -> bool:
        for method, path in (("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/metrics"), ("GET", "/v1/channels")):
            seen[path, client.ask(method, path).status] += 1
        fetched = client.ask("POST", "/v1/results:fetch", b'{"ranges": [{"interest": 1, "after": "0-0-0"}]}')
        seen["fetch", fetched.status] += 1
        status, retry_after = run_told(client, "SELECT VALUE 1;")
        seen["statement", status] += 1
        assert (status == 503) == (retry_after is not None)
        return status == 200 and figure(client, "tocsin_engine_replacements_total") == replacements

    wait_until(look, "the engine is replaced", ANSWER_S)
    return seen


@contextmanager
def asked(script: str, client: ClusterHttpClient) -> Iterator[Future[tuple[int, str | None]]]:
    """The script, on its way."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(run_told, client, script)
        wait_until(lambda: any(script[:20] in shown["script"] for shown in scripts(client)), "the script runs")
        yield future


def scripts(client: ClusterHttpClient) -> list[dict[str, Any]]:
    running: list[dict[str, Any]] = client.ask("GET", "/v1/statements").json["running"]
    return running


def test_an_engine_that_hangs_dies_or_cannot_be_stopped_is_replaced_and_nothing_is_lost(
    running: ClusterProcess, incoming: Path, tmp_path: Path
) -> None:
    client = running.client
    rows = tmp_path / "rows.json"
    rows.write_text("".join(f'{{"id": {number}}}\n' for number in range(LOADED_ROWS)))
    load_rows = f'LOAD DATASET v.Loaded USING localfs (("path"="localhost://{rows}"), ("format"="json"));'
    insert = f"INSERT INTO v.FromFiles ({ENDLESS});"
    with Load(client, incoming) as load:
        wait_until(lambda: len(told(client, "c")) > 3 and len(told(client, "p")) > 3, "channels tell", ANSWER_S)

        hung = java(running)
        with asked(insert, client) as inserting:
            hung.send_signal(signal.SIGSTOP)
            before = load.sent
            seen = outlive(client, 1)
            assert inserting.result(ANSWER_S)[0] == 503
        assert load.sent > before, "records are taken while there is no engine"
        assert not hung.is_running(), "also one that is stopped is killed"
        assert_only_scripts_had_to_wait(seen)
        wait_until(lambda: len(told(client, "c")) > before / 2, "channels go on", ANSWER_S)

        with asked(load_rows, client) as loading:
            java(running).kill()
            assert_only_scripts_had_to_wait(outlive(client, 2))
            assert loading.result(ANSWER_S)[0] in (200, 503)

        answer = client.run(UNSTOPPABLE, "?timeout=5")
        assert answer.status in (408, 503), "503 where the engine is being replaced by then"
        outlive(client, 3)
        after = load.sent
        wait_until(lambda: load.sent > after + 5, "records are taken")
    assert load.refused == []

    child = json.loads((tmp_path / "data" / "lock").read_bytes())["children"]
    assert [process["pid"] for process in child] == [java(running).pid]
    everything = list(range(load.sent))
    settle(lambda: told(client, "c"), everything[::2])
    settle(lambda: told(client, "p"), everything[1::2])
    settle(lambda: client.rows("SELECT VALUE d.id FROM v.Doubled d;"), [2 * number for number in everything])
    settle(lambda: client.rows("SELECT VALUE f.id FROM v.FromFiles f;"), list(range(load.files)))
    loaded = client.rows("SELECT VALUE count(*) FROM v.Loaded l;")
    assert loaded == [LOADED_ROWS if loading.result()[0] == 200 else 0]
    assert client.rows("SELECT VALUE r FROM v.FRejected r;") == []
    assert figure(client, "tocsin_channel_poison_records_total") == 0
    assert figure(client, "tocsin_engine_up") == 1


def told(client: ClusterHttpClient, channel: str) -> list[int]:
    answer = client.run(f"SELECT VALUE r.result FROM v.{channel}Results r;")
    return answer.rows if answer.status == 200 else []


def settle(found: Callable[[], list[int]], wanted: list[int]) -> None:
    """All of these are there in the end, and each once."""
    wait_until(lambda: len(found()) >= len(wanted), "all is there", ANSWER_S)
    assert sorted(found()) == wanted


def assert_only_scripts_had_to_wait(seen: Counter[tuple[str, int]]) -> None:
    assert {path for path, status in seen if status == 503} == {"/readyz", "statement"}
    assert {status for _, status in seen} == {200, 503}
    assert not {path for path, _ in seen} - {"/healthz", "/readyz", "/metrics", "/v1/channels", "fetch", "statement"}
