"""Processes that are kept running."""

from __future__ import annotations

import os
import signal
import sys
from ipaddress import ip_address
from pathlib import Path

import psutil
import pytest
from structlog.testing import capture_logs

from tests.support.waiting import until
from tocsin.cli.broker_processes import allow_supervised_brokers, broker_commands, check_brokers
from tocsin.serving.address_guard import AddressGuard
from tocsin.serving.supervisor import Command, Supervisor
from tocsin.settings import Settings
from tocsin.wire.errors import EXIT_FENCED, InputError

WAITS = "import sys, os; open(sys.argv[1], 'a').write(f'{os.getpid()}\\n'); sys.stdin.read()"


def command(file: Path, code: str = WAITS) -> Command:
    return Command("one", [sys.executable, "-c", code, str(file)], dict(os.environ))


def started(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().splitlines()] if file.exists() else []


async def test_a_process_that_is_killed_is_started_again_and_stopped_with_the_supervisor(tmp_path: Path) -> None:
    supervisor, file = Supervisor(first_pause_s=0.01), tmp_path / "pids"
    supervisor.start([command(file)])
    for count in (1, 2, 3):
        await until(lambda count=count: len(started(file)) == count)
        if count < 3:
            os.kill(started(file)[-1], signal.SIGKILL)
    await supervisor.stop()
    assert not any(psutil.pid_exists(pid) for pid in started(file))


async def test_a_broker_whose_name_was_taken_over_is_not_started_again(tmp_path: Path) -> None:
    supervisor, file = Supervisor(first_pause_s=0.01), tmp_path / "pids"
    ends = f"import sys, os; open(sys.argv[1], 'a').write(f'{{os.getpid()}}\\n'); sys.exit({EXIT_FENCED})"
    with capture_logs() as logs:
        supervisor.start([command(file, ends)])
        await until(lambda: any("not restarted" in line["event"] for line in logs))
    assert len(started(file)) == 1
    await supervisor.stop()


async def test_what_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    supervisor, script = Supervisor(first_pause_s=0.01), tmp_path / "script"
    supervisor.start([Command("one", [str(script)], dict(os.environ))])
    file = tmp_path / "pids"
    script.write_text(f"#!/bin/sh\necho $$ >> {file}\nexec cat\n")
    script.chmod(0o755)
    await until(lambda: len(started(file)) == 1)
    await supervisor.stop()


def test_brokers_beside_a_cluster_have_ports_and_names_of_their_own(tmp_path: Path) -> None:
    settings = Settings.load(None, {}, {"data": tmp_path})
    made = broker_commands(settings, "http://127.0.0.1:8470", 2, config=None, verbose=False)
    assert list(made) == ["Default.broker1", "Default.broker2"]
    assert [line[line.index("--port") + 1] for line in made.values()] == ["8480", "8481"]
    free = Settings.load(None, {}, {"broker.http.port": 0})
    (line,) = broker_commands(free, "http://127.0.0.1:8470", 1, config=tmp_path / "t.toml", verbose=True).values()
    assert line[line.index("--port") + 1] == "0"
    assert line[-3:] == ["--config", str(tmp_path / "t.toml"), "--verbose"]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({}, True),
        ({"cluster.http.host": "0.0.0.0"}, True),
        ({"cluster.http.host": "0.0.0.0", "broker.http.host": "10.1.2.3"}, True),
        ({"cluster.http.host": "0.0.0.0", "cluster.channels.private": "refused"}, False),
    ],
)
def test_brokers_beside_a_cluster_can_be_told_on_this_machine(flags: dict[str, object], told: bool) -> None:
    settings = allow_supervised_brokers(Settings.load(None, {}, flags), 2)
    chosen = settings.cluster
    guard = AddressGuard.of(chosen.channels.private, "x", loopback=chosen.http.loopback)
    host = ip_address(settings.broker.http.host)
    assert [guard.allows(host, port) for port in (8480, 8481)] == [told, told]
    # And nothing else that is private for their sake.
    assert guard.allows(host, 8482) is guard.allows(ip_address("127.0.0.9"), 8480) is chosen.http.loopback


def test_a_broker_beside_a_cluster_is_told_at_its_callback_or_at_a_port_that_is_not_known_yet() -> None:
    outside = {"cluster.http.host": "0.0.0.0"}
    free = allow_supervised_brokers(Settings.load(None, {}, {**outside, "broker.http.port": 0}), 1)
    assert free.cluster.channels.private == "127.0.0.1"
    callback = {"broker.cluster.callback": "http://10.1.2.3:99", "broker.http.port": 0}
    named = allow_supervised_brokers(Settings.load(None, {}, {**outside, **callback}), 1)
    assert named.cluster.channels.private == "10.1.2.3:99"


def test_brokers_that_could_not_run_are_refused_before_anything_starts() -> None:
    with pytest.raises(InputError, match="from 0 to 64"):
        check_brokers(Settings(), 65)
    guarded = Settings.load(None, {}, {"cluster.auth.mode": "on"})
    with pytest.raises(InputError, match="asks for tokens") as refused:
        check_brokers(guarded, 1)
    assert "--role broker" in str(refused.value.hint)
    assert "writer" not in str(refused.value.hint)
    check_brokers(Settings.load(None, {}, {"cluster.auth.mode": "on", "broker.cluster.token": "x"}), 1)
