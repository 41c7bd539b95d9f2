"""A cluster whose clock was set wrong keeps what it has, goes on with its work, and is told what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.support.sparkless_process import ServedParts
from tests.unit.cluster.data_folder.test_clock_guard import BEGIN, DAY, SECOND, Machine
from tocsin import compose
from tocsin.cli.main import main
from tocsin.clock import from_us, now_us
from tocsin.cluster.data_folder.clock_guard import ClockGuard, ClockSuspicion, machine_clocks
from tocsin.pipeline.datasets.upkeep import upkeep

SETUP = """
CREATE DATAVERSE v; USE v; CREATE TYPE T AS {id: int};
CREATE DATASET D(T) PRIMARY KEY id WITH {"retention": duration("PT1H")};
CREATE FEED F WITH {"adapter-name": "http_adapter", "type-name": "T"};
CONNECT FEED F TO DATASET D; START FEED F;
"""


class Suspicious(ServedParts):
    """A cluster on a machine whose clocks the test sets."""

    machine: Machine
    results_now: Callable[[], datetime]

    def publish(self, identity: int) -> dict[str, Any]:
        body = f'{{"id": {identity}}}'.encode()
        headers = {"Idempotency-Key": f"key {identity}"}
        answer = self.client.ask("POST", "/v1/feeds/v.F?wait=visible", body, **headers)
        assert answer.status == 200, answer
        return dict(answer.json)

    def held(self) -> list[int]:
        upkeep(self.parts.table("D"))
        return sorted(row["id"] for row in self.rows("D"))

    def is_suspect(self) -> bool:
        return b"tocsin_clock_suspect 1.0" in self.client.ask("GET", "/metrics").body

    def at(self) -> int:
        return self.parts.table("D").log.state.at_us


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Suspicious]:
    machine = Machine()
    with mock.patch.object(compose, "Retention", wraps=compose.Retention) as retention:
        started = Suspicious(tmp_path / "data", clocks=machine.clocks())
        started.machine, started.results_now = machine, retention.call_args.kwargs["now"]
        try:
            started.run(SETUP)
            yield started
        finally:
            started.close()


def test_a_jump_forward_deletes_nothing_and_commits_do_not_follow_it(cluster: Suspicious) -> None:
    cluster.publish(1)
    assert cluster.at() == BEGIN
    cluster.machine.wall_us += 30 * DAY
    cluster.machine.pass_time(SECOND)
    cluster.publish(1)
    cluster.publish(2)
    assert cluster.held() == [1, 2], "rows stay, a repeated key is known, and feeds go on"
    assert BEGIN < cluster.at() < BEGIN + DAY
    assert cluster.results_now() == from_us(BEGIN + SECOND)
    assert cluster.is_suspect()
    cluster.machine.wall_us -= 30 * DAY
    assert not cluster.is_suspect()
    cluster.machine.pass_time(DAY)
    assert cluster.results_now() == from_us(BEGIN + DAY + SECOND)
    assert cluster.held() == []


def test_an_admin_can_say_that_the_clock_is_right(cluster: Suspicious, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.publish(1)
    cluster.machine.wall_us += 30 * DAY
    assert cluster.held() == [1]
    with pytest.raises(SystemExit) as ended:
        main(["clock", "accept", "--url", cluster.client.url])
    assert ended.value.code == 0
    assert capsys.readouterr().out.endswith(f"accepted: it is {from_us(BEGIN + 30 * DAY).isoformat()}\n")
    assert not cluster.is_suspect()
    assert cluster.held() == []


def test_without_a_cluster_the_folder_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ClockGuard(tmp_path, Machine(wall_us=now_us() + DAY).clocks()).close()
    assert ClockGuard(tmp_path, machine_clocks()).suspicion() is ClockSuspicion.BEFORE
    with pytest.raises(SystemExit) as ended:
        main(["clock", "accept", "--data", str(tmp_path)])
    assert ended.value.code == 0
    assert "accepted: it is" in capsys.readouterr().out
    assert ClockGuard(tmp_path, machine_clocks()).suspicion() is None
