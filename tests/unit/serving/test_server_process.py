"""A server's life as a process: it says when it is ready, stops on signals, and refuses a taken port."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import uvloop

from tests.support.fake_cluster import FakeCredentials, FakeStatements
from tests.support.waiting import WITHIN_S
from tocsin.cluster.http.routes import cluster_application
from tocsin.serving.application import SWITCH_INTERVAL_S, bind_socket, connections_within, listen
from tocsin.settings import ClusterSettings
from tocsin.wire.errors import ConflictError

# The real life of a server around the fake executor, under the loop that is used in earnest.
SERVER = """
import asyncio, signal, sys
from contextlib import asynccontextmanager
from types import SimpleNamespace
import uvloop
from tests.support.fake_cluster import FakeCredentials, FakeStatements
from tocsin.cluster.http.routes import cluster_application
from tocsin.cluster.http.script_responses import StatementLimits
from tocsin.serving.application import serve
from tocsin.settings import ClusterSettings
from tocsin.wire.errors import TocsinError

port, slow, grace_s = int(sys.argv[1]), sys.argv[2] == "slow", float(sys.argv[3])

@asynccontextmanager
async def start(address):
    # As Spark does.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print("starting", address, sys.getswitchinterval(), flush=True)
    try:
        if slow:
            await asyncio.Event().wait()
        limits = StatementLimits(60, 10, 4, grace_s=grace_s)
        yield SimpleNamespace(
            app=cluster_application(ClusterSettings(), FakeStatements(), FakeCredentials(), limits=limits)
        )
    finally:
        print("stopped", flush=True)

try:
    uvloop.run(serve(start, host="127.0.0.1", port=port, on_ready=lambda url: print("ready", url, flush=True)))
except TocsinError as error:
    sys.exit(f"refused: {error}")
"""


@contextmanager
def server(port: int = 0, *, slow: bool = False, grace_s: float = 0.1) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", SERVER, str(port), "slow" if slow else "", str(grace_s)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, os.getcwd()])}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


def rest(process: subprocess.Popen[str]) -> str:
    """The last thing it said."""
    assert process.stdout is not None
    return process.stdout.read().splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(number: signal.Signals) -> None:
    with server() as process:
        assert line(process)[0] == "starting"
        word, url = line(process)
        assert word == "ready"
        with urllib.request.urlopen(f"{url}/healthz", timeout=WITHIN_S) as response:
            assert json.load(response) == {"status": "alive"}
        process.send_signal(number)
        assert process.wait(timeout=WITHIN_S) == 0
        assert rest(process) == "stopped"


def test_a_thread_that_computes_soon_lets_the_event_loop_have_its_turn() -> None:
    with server(slow=True) as process:
        assert float(line(process)[2]) == pytest.approx(SWITCH_INTERVAL_S)
    assert sys.getswitchinterval() > SWITCH_INTERVAL_S, "Python's own is longer"


def test_a_signal_while_it_starts_gives_the_start_up() -> None:
    with server(slow=True) as process:
        assert line(process)[0] == "starting"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=WITHIN_S) == 0
        assert rest(process) == "stopped"


def test_a_second_ctrl_c_ends_it_at_once() -> None:
    with server(grace_s=60) as process:
        line(process)
        url = line(process)[1]
        request = b"POST /v1/statements HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nwait"
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as connection:
            connection.sendall(request)
            _until_running(url)
            process.send_signal(signal.SIGINT)
            _until_refused(url)
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=WITHIN_S) == 130


def test_a_taken_port_is_refused_before_anything_is_started() -> None:
    with server() as first:
        line(first)
        port = int(line(first)[1].rpartition(":")[2])
        with server(port) as second:
            assert second.wait(timeout=WITHIN_S) == 1
            assert second.stderr is not None
            assert f"127.0.0.1:{port} is taken by another program" in second.stderr.read()
            assert line(second) == []


def test_of_two_that_start_at_the_same_time_on_one_port_only_one_gets_ready() -> None:
    async def race() -> None:
        app, other = (cluster_application(ClusterSettings(), FakeStatements(), FakeCredentials()) for _ in range(2))
        with (
            bind_socket("127.0.0.1", 0) as (sock, url),
            bind_socket("127.0.0.1", int(url.rpartition(":")[2])) as (second, _),
        ):
            async with listen(app, sock):
                with pytest.raises(ConflictError, match="is taken by another program"):
                    async with listen(other, second):
                        pass

    uvloop.run(race())


def _until_running(url: str) -> None:
    while True:
        with urllib.request.urlopen(f"{url}/v1/statements", timeout=WITHIN_S) as response:
            if any(script["state"] == "running" for script in json.load(response)["running"]):
                return


def _until_refused(url: str) -> None:
    try:
        while True:
            urllib.request.urlopen(f"{url}/healthz", timeout=WITHIN_S).close()
    except OSError:
        return


@pytest.mark.parametrize(
    ("files", "wanted", "granted"), [(1_024, 20_000, 768), (1_024, 500, 500), (100, 20_000, 50), (1, 20_000, 1)]
)
def test_there_are_no_more_connections_than_files(files: int, wanted: int, granted: int) -> None:
    assert connections_within(files, wanted) == granted
