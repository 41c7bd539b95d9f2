"""One Spark cluster for all tests of the folder, with workers that see none of our files, and one Tocsin on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import real_processes
from tests.support.real_processes import ClusterHttpClient, ClusterProcess
from tests.support.spark_cluster import (
    Namespace,
    StandaloneCluster,
    hidden_folders,
    standalone_cluster,
    why_no_namespaces,
    worker_python,
)

SHARED_DISK = "tests.support.shared_disk"


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="session")
def workers(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Iterator[StandaloneCluster]:
    """A master and two workers."""
    if (why := why_no_namespaces()) is not None:
        pytest.skip(why)
    namespace = Namespace(hidden_folders(), visible=[data])
    with standalone_cluster(
        tmp_path_factory.mktemp("spark-cluster") / "processes", python=str(worker_python()), namespace=namespace
    ) as running:
        yield running


@pytest.fixture(scope="session")
def token(data: Path) -> str:
    """An administrator's, who may create functions in Python."""
    return real_processes.tocsin("token", "create", "ada", "--role", "admin", "--data", str(data)).stdout.strip()


@pytest.fixture(scope="session")
def tocsin(workers: StandaloneCluster, data: Path, token: str) -> Iterator[ClusterProcess]:
    """Tocsin with its driver here and its executors there. Each test has a dataverse of its own."""
    conf = {**workers.conf, "spark.cores.max": "2"}  # leaves cores for the tests that start another one
    with ClusterProcess(data, module=SHARED_DISK, conf=conf, TOCSIN_CLUSTER__SPARK__MASTER=workers.url) as process:
        yield process.ready()


@pytest.fixture(scope="session")
def client(tocsin: ClusterProcess, token: str) -> ClusterHttpClient:
    return ClusterHttpClient(tocsin.client.url, token)
