"""One Spark cluster for all tests of the folder, with workers that see none of our files, and one Tocsin on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import real_processes
from tests.support.real_processes import ClusterHttpClient, ClusterProcess
from tests.support.s3_server import S3Server
from tests.support.spark_cluster import (
    Namespace,
    StandaloneCluster,
    free_port,
    hidden_folders,
    standalone_cluster,
    why_no_namespaces,
    worker_python,
)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="session")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A master and two workers."""
    if (why := why_no_namespaces()) is not None:
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("spark-cluster") / "processes"
    namespace = Namespace(hidden_folders())
    with standalone_cluster(folder, python=str(worker_python()), namespace=namespace) as running:
        yield running


@pytest.fixture(scope="session")
def token(data: Path) -> str:
    """An administrator's, who may create functions in Python."""
    return real_processes.tocsin("token", "create", "ada", "--role", "admin", "--data", str(data)).stdout.strip()


@pytest.fixture(scope="session")
def ui_port() -> int:
    return free_port()


@pytest.fixture(scope="session")
def tocsin(
    workers: StandaloneCluster, s3_server: S3Server, data: Path, token: str, ui_port: int
) -> Iterator[ClusterProcess]:
    """Tocsin with its driver here, its executors there and its tables on S3. Each test has a dataverse of its own."""
    # It leaves cores for the tests that start another one.
    conf = {**workers.conf, "spark.cores.max": "2", "spark.ui.port": str(ui_port)}
    variables = {**cluster_variables(workers, s3_server), "TOCSIN_CLUSTER__SPARK__UI": "true"}
    with ClusterProcess(data, conf=conf, **variables) as process:
        yield process.ready()


def cluster_variables(workers: StandaloneCluster, server: S3Server) -> dict[str, str]:
    """The settings with which Tocsin runs on the workers, with its tables in a new bucket."""
    options = ", ".join(f'{name} = "{value}"' for name, value in server.options.items())
    return {
        "TOCSIN_CLUSTER__SPARK__MASTER": workers.url,
        "TOCSIN_CLUSTER__STORAGE__URL": f"s3://{server.new_bucket()}/tables",
        "TOCSIN_CLUSTER__STORAGE__OPTIONS": f"{{{options}}}",
    }


@pytest.fixture(scope="session")
def client(tocsin: ClusterProcess, token: str) -> ClusterHttpClient:
    return ClusterHttpClient(tocsin.client.url, token)
