"""`tocsin up` as people meet it: a real process, from its ready line to its end, with the command line beside it."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.real_processes import ClusterHttpClient, ClusterProcess, cluster, described, tocsin
from tests.support.waiting import WITHIN_S, wait_until

pytestmark = pytest.mark.usefixtures("running")

# Far longer than any test waits.
ENDLESS = "SELECT VALUE count(*) FROM range(100000000) a, range(100000000) b WHERE a.id % 7 = b.id % 5;"
STREAM = "application/x-ndjson"
STREAMED_ROWS = 300_000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("process") / "data"


@pytest.fixture(scope="module")
def running(data: Path) -> Iterator[ClusterProcess]:
    with cluster(data) as process:
        made = """
            CREATE DATAVERSE v; USE v;
            CREATE TYPE T AS {id: int, said: string?};
            CREATE ACTIVE DATASET D(T) PRIMARY KEY id;
            CREATE INDEX i ON D(said) TYPE KEYWORD;
            CREATE FUNCTION twice(a) { a + a };
            CREATE TYPE C AS {id: int, who: int};
            CREATE DATASET Counted(C) PRIMARY KEY id;
            INSERT INTO D [{"id": 1, "said": "a", "more": {"deep": [1, null]}}, {"id": 2}];
            UPSERT INTO D {"id": 2, "said": "b"};
        """
        assert process.client.run(made).status == 200
        yield process


@pytest.fixture
def client(running: ClusterProcess) -> ClusterHttpClient:
    return running.client


def running_scripts(client: ClusterHttpClient) -> list[dict[str, Any]]:
    scripts: list[dict[str, Any]] = client.ask("GET", "/v1/statements").json["running"]
    return scripts


def is_idle(client: ClusterHttpClient) -> bool:
    return not running_scripts(client)


def test_one_line_says_that_it_is_ready_and_nothing_else_is_printed(running: ClusterProcess, data: Path) -> None:
    assert running.out == f"tocsin cluster ready at {running.client.url} (data: {data})\n"
    assert running.err == ""
    assert running.client.ask("GET", "/readyz").status == 200


def test_a_second_cluster_on_the_same_data_is_refused(running: ClusterProcess, data: Path) -> None:
    second = tocsin("up", "--data", str(data), "--port", "0")
    assert (second.returncode, second.stdout) == (1, "")
    assert f"in use by process {running.pid} at {running.client.url}" in second.stderr
    assert "--data" in second.stderr
    assert "Traceback" not in second.stderr
    assert running.client.rows("SELECT VALUE 1;") == [1]


def test_a_script_whose_time_is_up_ends_and_so_does_its_job(client: ClusterHttpClient) -> None:
    answer = client.run(f"SELECT VALUE 1; {ENDLESS}", "?timeout=0.5")
    assert (answer.status, answer.error["code"], answer.error["statement"]) == (408, "stopped", 2)
    assert [result["rows"] for result in answer.json["results"]] == [[1]]
    # If the job went on, it would have all of the machine.
    assert client.run("SELECT VALUE count(*) FROM range(100000) a;", "?timeout=20").rows == [100_000]


def test_a_script_is_cancelled_by_its_id(client: ClusterHttpClient) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.run, ENDLESS, **{"Tocsin-Request-Id": "mine"})
        wait_until(lambda: any(script["id"] == "mine" for script in running_scripts(client)), "the script runs")
        assert client.ask("DELETE", "/v1/statements/mine").status == 202
        answer = asked.result()
    assert (answer.status, answer.error["message"]) == (408, "the script was cancelled")
    assert client.ask("DELETE", "/v1/statements/mine").status == 404
    assert is_idle(client)


@pytest.mark.parametrize("accept", ["application/json", STREAM])
def test_a_client_that_leaves_takes_its_script_with_it(client: ClusterHttpClient, accept: str) -> None:
    connection = client.connection()
    connection.request("POST", "/v1/statements", ENDLESS, {"Content-Type": "text/plain", "Accept": accept})
    wait_until(lambda: not is_idle(client), "the script runs")
    connection.close()
    wait_until(lambda: is_idle(client), "the script has ended")


def test_a_large_answer_is_streamed_within_bounded_memory(running: ClusterProcess) -> None:
    client = running.client
    query = f"SELECT VALUE {{'id': a.id, 'text': repeat('x', 200)}} FROM range({STREAMED_ROWS}) a;"
    process = psutil.Process(running.pid)
    connection = client.connection()
    warm = client.run(query.replace(str(STREAMED_ROWS), "2000"), Accept=STREAM)
    assert len(warm.lines) == 2_001
    before_bytes = peak_bytes = process.memory_info().rss
    connection.request("POST", "/v1/statements", query, {"Content-Type": "text/plain", "Accept": STREAM})
    response = connection.getresponse()
    count = size_bytes = 0
    last = b""
    for line in response:
        count, last = count + 1, line
        size_bytes += len(line)
        if count % 10_000 == 0:
            peak_bytes = max(peak_bytes, process.memory_info().rss)
    connection.close()
    assert json.loads(last) == {"statement": 1, "kind": "query", "rows": STREAMED_ROWS}
    assert count == STREAMED_ROWS + 1
    assert size_bytes > 70 << 20
    assert peak_bytes - before_bytes < 60 << 20


def test_many_clients_at_once_lose_nothing_and_double_nothing(client: ClusterHttpClient) -> None:
    clients, inserts = 10, 8
    start = threading.Barrier(clients)

    def work(who: int) -> list[int]:
        start.wait()
        done = []
        for i in range(inserts):
            answer = client.run(f'INSERT INTO v.Counted {{"id": {who * 1_000 + i}, "who": {who}}};')
            done.append(answer.results[0]["commit"])
        # All of them want this one; one gets it.
        done.append(client.run('INSERT INTO v.Counted {"id": -1, "who": 0};').status)
        return done

    with ThreadPoolExecutor(clients) as pool:
        told = list(pool.map(work, range(clients)))
    statuses = sorted(each[-1] for each in told)
    assert statuses == [200] + [409] * (clients - 1)
    commits = sorted(number for each in told for number in each[:-1])
    every = set(range(1, clients * inserts + 2))
    assert len(set(commits)) == len(commits) == clients * inserts
    assert set(commits) < every
    ids = client.rows("SELECT VALUE c.id FROM v.Counted c;")
    assert sorted(ids) == sorted([-1, *(who * 1_000 + i for who in range(clients) for i in range(inserts))])


def test_half_a_request_changes_nothing(client: ClusterHttpClient) -> None:
    body = b'INSERT INTO v.D {"id": 99};'
    head = b"POST /v1/statements HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection((client.host, client.port)) as connection:
        connection.sendall(head % (len(body) + 100) + body)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(65_536)
    wait_until(lambda: is_idle(client), "nothing runs")
    assert client.rows("SELECT VALUE d.id FROM v.D d WHERE d.id = 99;") == []


def test_the_command_line_runs_scripts_in_every_format(client: ClusterHttpClient, tmp_path: Path) -> None:
    where = {"TOCSIN_URL": client.url}
    query = "USE v; SELECT d.id AS id, d.said AS said FROM D d ORDER BY d.id;"
    assert tocsin("sql", "-e", query, "--format", "csv", **where).stdout.splitlines() == ["id,said", "1,a", "2,b"]
    lines = tocsin("sql", "-e", query, "--format", "json", **where).stdout.splitlines()
    assert [json.loads(line) for line in lines] == [{"id": 1, "said": "a"}, {"id": 2, "said": "b"}]
    table = tocsin("sql", stdin=query, **where).stdout
    assert "said" in table
    assert "b" in table
    script = tmp_path / "script.sql"
    script.write_text("SELECT VALUE v.twice(21);\nSELECT VALUE nope;")
    failed = tocsin("sql", "-f", str(script), "--format", "json", **where)
    assert (failed.returncode, failed.stdout) == (1, "42\n")
    assert "unknown name nope" in failed.stderr
    assert "2" in failed.stderr
    nobody = tocsin("sql", "-e", "SELECT VALUE 1;", "--url", "http://127.0.0.1:1")
    assert nobody.returncode == 2
    assert "tocsin up" in nobody.stderr


def test_killed_restarted_backed_up_and_restored_it_has_everything(
    running: ClusterProcess, data: Path, tmp_path: Path
) -> None:
    """Last in this file: it ends the cluster that the others use."""
    secret = tocsin("token", "create", "ada", "--role", "admin", "--data", str(data)).stdout.strip()
    state = everything(running.client, data)
    running.kill()
    # At once, while its Java may still be there.
    with cluster(data) as again:
        assert everything(again.client, data) == state
        assert again.err == "" or again.err.startswith("waiting for process")
        assert len(again.err.splitlines()) <= 1
        assert again.client.run('INSERT INTO v.D {"id": 3};').results[0]["commit"] == 3
        saved = tocsin("backup", str(tmp_path / "saved.tar"), "--data", str(data))
        assert saved.returncode == 0, saved.stderr
        state = everything(again.client, data)
        again.signal(signal.SIGTERM)
        assert again.wait(within_s=WITHIN_S) == 0
        assert len(again.out.splitlines()) == 1
        assert len(again.err.splitlines()) <= 1

    restored = tmp_path / "restored"
    done = tocsin("restore", str(tmp_path / "saved.tar"), "--data", str(restored))
    assert done.returncode == 0, done.stderr
    with cluster(restored, TOCSIN_CLUSTER__AUTH__MODE="on") as guarded:
        url = guarded.client.url
        assert guarded.client.ask("GET", "/healthz").status == 200
        for refused in (guarded.client, ClusterHttpClient(url, "tocsin_wrong"), ClusterHttpClient(url, "")):
            answer = refused.run("SELECT VALUE 1;")
            assert (answer.status, answer.error["code"]) == (401, "unauthorized")
        assert everything(ClusterHttpClient(url, secret), restored) == state
        asked = {"TOCSIN_URL": url, "TOCSIN_TOKEN": secret}
        assert tocsin("sql", "-e", "SELECT VALUE 1;", "--format", "json", **asked).stdout == "1\n"
        assert "ada" in tocsin("token", "list", "--data", str(restored)).stdout
        assert tocsin("token", "revoke", "1", "--data", str(restored)).returncode == 0
        assert ClusterHttpClient(url, secret).run("SELECT VALUE 1;").status == 401
        # With a query still running, it stops all the same.
        other = tocsin("token", "create", "bob", "--data", str(restored)).stdout.strip()
        with ThreadPoolExecutor(1) as pool:
            bob = ClusterHttpClient(url, other)
            asked_for = pool.submit(bob.run, ENDLESS)
            wait_until(lambda: not is_idle(bob), "the script runs")
            guarded.signal(signal.SIGINT)
            assert guarded.wait(within_s=WITHIN_S) == 0
            assert asked_for.result().status == 503
        assert len(guarded.out.splitlines()) == 1
        assert len(guarded.err.splitlines()) <= 1


def everything(client: ClusterHttpClient, data: Path) -> dict[str, Any]:
    """What it has; where its datasets lie is told as within the data folder."""
    described_here = described(client)
    for dataset in described_here["Dataset"]:
        assert Path(dataset["Location"]).is_relative_to(data)
        dataset["Location"] = str(Path(dataset["Location"]).relative_to(data))  # type: ignore[index]
    return {
        "metadata": described_here,
        "rows": sorted(client.rows("SELECT VALUE d FROM v.D d;"), key=lambda row: row["id"]),
        "past": client.rows("SELECT VALUE d FROM v.D VERSION AS OF 1 d WHERE d.id = 2;"),
        "counted": sorted(client.rows("SELECT VALUE c.id FROM v.Counted c;")),
        "function": client.rows("SELECT VALUE v.twice(4);"),
    }
