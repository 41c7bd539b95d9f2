"""How Tocsin starts on a Spark cluster: what is refused, with which words, and what it shows to nobody."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

import psutil
import pytest

from tests.integration.spark_cluster.conftest import cluster_variables
from tests.support import real_processes
from tests.support.real_processes import ClusterHttpClient, ClusterProcess
from tests.support.s3_server import S3Server
from tests.support.spark_cluster import StandaloneCluster, bare_python, worker_python

pytestmark = pytest.mark.cluster


def conf_of(workers: StandaloneCluster, **more: str) -> dict[str, str]:
    return {**workers.conf, "spark.cores.max": "1", **{name.replace("_", "."): value for name, value in more.items()}}


def test_workers_that_would_have_to_read_this_disk_are_refused(tmp_path: Path) -> None:
    done = real_processes.tocsin(
        "up", "--data", str(tmp_path), "--port", "0", TOCSIN_CLUSTER__SPARK__MASTER="spark://127.0.0.1:7077"
    )
    assert done.returncode != 0
    assert "the workers of spark://127.0.0.1:7077 cannot read tables on this machine's disk" in done.stderr
    assert "cluster.storage.url" in done.stderr


def test_a_worker_that_lacks_a_package_fails_the_start_with_the_list(
    tmp_path: Path, workers: StandaloneCluster, s3_server: S3Server
) -> None:
    conf = conf_of(workers, spark_pyspark_python=str(bare_python()))
    with ClusterProcess(tmp_path, conf=conf, **cluster_variables(workers, s3_server)) as process:
        assert process.wait() != 0
    assert "lacks pyarrow (ModuleNotFoundError: No module named 'pyarrow')" in process.err
    assert "requirements-worker.lock" in process.err
    assert "cluster.spark.worker_archive" in process.err


def test_the_workers_environment_can_be_sent_as_an_archive(
    tmp_path: Path, workers: StandaloneCluster, s3_server: S3Server
) -> None:
    archive = tmp_path / "environment.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(worker_python().parents[1], ".")
    conf = conf_of(workers)
    del conf["spark.pyspark.python"]
    variables = {**cluster_variables(workers, s3_server), "TOCSIN_CLUSTER__SPARK__WORKER_ARCHIVE": str(archive)}
    with ClusterProcess(tmp_path / "data", conf=conf, **variables) as process:
        assert process.ready().client.rows("SELECT VALUE 1 + 1;") == [2]


def test_no_secret_is_shown_by_a_process_a_log_a_plan_or_the_settings(
    tocsin: ClusterProcess, client: ClusterHttpClient, workers: StandaloneCluster, s3_server: S3Server, ui_port: int
) -> None:
    client.run("CREATE TYPE Secretive AS { id: int }; CREATE DATASET Secrets(Secretive) PRIMARY KEY id;")
    client.run("INSERT INTO Secrets [{'id': 1}, {'id': 2}];")
    assert client.rows("SELECT VALUE count(*) FROM Secrets s;") == [2]
    failed = client.run("SELECT VALUE 1 / (s.id - 1) FROM Secrets s;")
    assert failed.status == 400
    processes = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    others = [line for line in processes.splitlines() if not line.startswith(str(s3_server.binary))]
    files = [file for file in tocsin.data.rglob("*") if file.is_file()]
    ui = ClusterHttpClient(f"http://127.0.0.1:{ui_port}")
    (application,) = ui.ask("GET", "/api/v1/applications").json
    pages = ("/environment/", "/SQL/", "/jobs/", f"/api/v1/applications/{application['id']}/environment")
    shown = {
        "ui": "".join(ui.ask("GET", page).body.decode() for page in pages),
        "processes": "\n".join(others),
        "files": "".join(f"{file}\n{file.read_text(errors='replace')}" for file in files),
        "output": tocsin.out + tocsin.err,
        "executors": workers.executor_logs(),
        "workers": "".join(process.said() for process in workers.processes.values()),
        "plan": client.run("EXPLAIN SELECT VALUE s FROM Secrets s;").body.decode(),
        "error": failed.body.decode(),
        "settings": real_processes.tocsin("config", "show", **cluster_variables(workers, s3_server)).stdout,
    }
    assert "fs.s3a.bucket." in shown["ui"]
    assert "org.apache.spark.deploy.SparkSubmit" in shown["processes"]
    assert s3_server.endpoint in shown["settings"]
    assert "FileScan" in shown["plan"] or "Scan" in shown["plan"]
    for secret in (workers.secret, s3_server.secret_key, s3_server.access_key):
        assert [place for place, text in shown.items() if secret in text] == []


def test_the_driver_listens_on_the_interface_of_the_master_alone(tocsin: ClusterProcess, ui_port: int) -> None:
    sockets = [
        connection.laddr
        for process in tocsin.java()
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert ui_port in {address.port for address in sockets}
    assert {address.ip.removeprefix("::ffff:") for address in sockets} == {"127.0.0.1"}
