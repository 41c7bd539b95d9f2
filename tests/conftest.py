"""What every test may ask for."""

from __future__ import annotations

import asyncio
import os
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from py4j.clientserver import ClientServerConnection
from xdist.scheduler import LoadScopeScheduling

from tests.support import examples
from tests.support.s3_server import s3_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.in_process_cluster import LocalCluster

__all__ = ["s3_server"]

ROOT = Path(__file__).parents[1]

# Machines differ in speed, so no example has a deadline. On a build machine every run tries the same examples: a red
# build then means a change and not luck.
settings.register_profile("here", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("here"), derandomize=True, print_blob=True)
settings.register_profile("quick", parent=settings.get_profile("here"), max_examples=12)
settings.load_profile("ci" if os.environ.get("CI") else "here")

# What `./dev test` leaves to `./dev test --all`: real processes killed at every place, and the lab beside theory. One
# path from publisher to subscriber stays, with Spark and real processes.
FULL_ONLY = ("tests/integration/", "tests/agreement/", "tests/corpus/")
ONE_PATH = "tests/integration/test_end_to_end.py"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="what ./dev test runs: a few minutes instead of all of them")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--quick"):
        examples.is_quick = True
        settings.load_profile("quick")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--quick"):
        return
    left_out = [
        item
        for item in items
        if (item.nodeid.startswith(FULL_ONLY) and not item.nodeid.startswith(ONE_PATH))
        or item.get_closest_marker("cluster")
    ]
    items[:] = [item for item in items if item not in set(left_out)]
    config.hook.pytest_deselected(items=left_out)
    config.stash[_LEFT_OUT] = len(left_out)
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = len(left_out)


_LEFT_OUT = pytest.StashKey[int]()


def pytest_testnodedown(node: Any) -> None:
    node.config.stash[_LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if config.getoption("--quick"):
        folders = ", ".join(folder.rstrip("/") for folder in FULL_ONLY)
        terminalreporter.write_sep("-", "a quick run")
        terminalreporter.write_line(f"not run: {config.stash.get(_LEFT_OUT, 0):,} tests of {folders}")
        terminalreporter.write_line("and of each property an eighth of its examples. ./dev test --all runs everything")


# Where the JVM was asked something on an event loop, which stands still when the JVM does.
asked_on_a_loop: list[str] = []
_send_command = ClientServerConnection.send_command


def _checked_send_command(connection: ClientServerConnection, command: str) -> Any:
    if asyncio._get_running_loop() is not None:
        asked_on_a_loop.append("".join(traceback.format_stack(limit=12)))
        raise AssertionError("the JVM is asked on an event loop")
    return _send_command(connection, command)


ClientServerConnection.send_command = _checked_send_command


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Also for those whose error was suppressed."""
    yield
    found, asked_on_a_loop[:] = asked_on_a_loop[:], []
    assert not found, f"the JVM was asked on an event loop:\n{found[0]}"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Where workers share the tests (`./dev test` has two), one has the files that need Spark in its process, so that
    there is one session; of the others each file stays together, for what its tests share."""
    return _OneSession(config, log)


class _OneSession(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return _scope(nodeid.partition("::")[0])


@cache
def _scope(file: str) -> str:
    if file.startswith("tests/integration/spark_cluster/"):
        return "spark cluster"  # started once for all its files
    text = (ROOT / file).read_text()
    return "spark" if "LocalCluster" in text or "SparkSession" in text else file


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one Spark session of the test run, started when the first test asks for it."""
    from tests.support.real_processes import QUICK_JAVA
    from tocsin.pipeline import session

    started = session.start(tmp_path_factory.mktemp("spark"), conf=QUICK_JAVA)
    yield started
    session.stop(started)


@pytest.fixture(scope="session")
def cluster(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One cluster for the whole test run, in this process; a test works in a dataverse of its own (`dataverse`)."""
    from tests.support.in_process_cluster import LocalCluster

    started = LocalCluster(spark, tmp_path_factory.mktemp("cluster"))
    yield started
    started.close()


@pytest.fixture
def dataverse(cluster: LocalCluster) -> Iterator[str]:
    """A dataverse for one test; it goes with all that is in it."""
    name = f"v{uuid4().hex}"
    cluster.run(f"CREATE DATAVERSE {name}")
    yield name
    cluster.before_landing = lambda _dataset: None
    cluster.run(f"DROP DATAVERSE {name} IF EXISTS")


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """Commands that run in this process say where the log goes; the next test's goes where this one's did."""
    import structlog

    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """An empty folder for a cluster's data."""
    folder = tmp_path / "data"
    folder.mkdir()
    return folder
