"""How Tocsin starts on a Spark cluster: what is refused, with which words, and what survives a lost worker."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.support import real_processes
from tests.support.real_processes import ClusterProcess
from tests.support.spark_cluster import StandaloneCluster, bare_python, worker_python

pytestmark = pytest.mark.cluster

SHARED_DISK = "tests.support.shared_disk"


def conf_of(workers: StandaloneCluster, **more: str) -> dict[str, str]:
    return {**workers.conf, "spark.cores.max": "1", **{name.replace("_", "."): value for name, value in more.items()}}


def test_workers_that_would_have_to_read_this_disk_are_refused(tmp_path: Path) -> None:
    done = real_processes.tocsin(
        "up", "--data", str(tmp_path), "--port", "0", TOCSIN_CLUSTER__SPARK__MASTER="spark://127.0.0.1:7077"
    )
    assert done.returncode != 0
    assert "the workers of spark://127.0.0.1:7077 cannot read tables on this machine's disk" in done.stderr
    assert "cluster.storage.url" in done.stderr


def start_that_fails(data: Path, workers: StandaloneCluster, conf: dict[str, str]) -> str:
    """Returns what the failing start says."""
    with ClusterProcess(data, module=SHARED_DISK, conf=conf, TOCSIN_CLUSTER__SPARK__MASTER=workers.url) as process:
        assert process.wait() != 0
        return process.err


def test_a_worker_that_lacks_a_package_fails_the_start_with_the_list(
    tmp_path: Path, workers: StandaloneCluster
) -> None:
    said = start_that_fails(tmp_path, workers, conf_of(workers, spark_pyspark_python=str(bare_python())))
    assert "lacks pyarrow (ModuleNotFoundError: No module named 'pyarrow')" in said
    assert "requirements-worker.lock" in said
    assert "cluster.spark.worker_archive" in said


def test_the_workers_environment_can_be_sent_as_an_archive(
    data: Path, tmp_path: Path, workers: StandaloneCluster
) -> None:
    archive = tmp_path / "environment.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(worker_python().parents[1], ".")
    conf = conf_of(workers)
    del conf["spark.pyspark.python"]
    with ClusterProcess(
        tmp_path / "data", module=SHARED_DISK, conf=conf, TOCSIN_CLUSTER__SPARK__MASTER=workers.url,
        TOCSIN_CLUSTER__SPARK__WORKER_ARCHIVE=str(archive),
    ) as process:  # fmt: skip
        assert process.ready().client.rows("SELECT VALUE 1 + 1;") == [2]


def test_no_process_shows_the_secret_of_the_cluster(tocsin: ClusterProcess, workers: StandaloneCluster) -> None:
    shown = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    assert "org.apache.spark.deploy.SparkSubmit" in shown
    assert workers.secret not in shown
    logs = [file for file in (tocsin.data / "scratch").rglob("*.log*") if file.is_file()]
    said = "".join(file.read_text(errors="replace") for file in logs) + workers.executor_logs() + tocsin.err
    assert workers.secret not in said
    assert workers.secret not in "".join(process.said() for process in workers.processes.values())
