"""A standalone Spark cluster on this machine: a master and two workers, from the installed PySpark, on loopback.

`./dev spark-cluster` starts one for trying. In tests each process has a mount namespace in which this checkout, its
environment and the folders of the test are hidden, as on another machine; workers have a Python of their own.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import hashlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

import psutil
import pyspark

import tocsin
from tests.support.waiting import WITHIN_S
from tocsin.pipeline.java import ensure_java, user_cache

ROOT: Final = Path(__file__).parents[2]
WORKER_LOCK: Final = ROOT / "requirements-worker.lock"
LOOPBACK: Final = "127.0.0.1"
WORKERS: Final = 2
_SPARK: Final = Path(pyspark.__file__).parent
_CACHE: Final = user_cache(os.environ) / "tests"
_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
_REGISTERED: Final = "Successfully registered with master"
# Arguments: the folder for mounts, Spark's folder, how many folders are hidden and which, how many visible and which.
_HIDE: Final = """
set -e
hold=$1 spark=$2
shift 2
mkdir -p "$hold/spark"
mount --bind "$spark" "$hold/spark"
hidden=$1
shift
hide=
while [ "$hidden" -gt 0 ]; do hide="$hide $1"; shift; hidden=$((hidden - 1)); done
visible=$1
shift
i=0
show=
while [ "$i" -lt "$visible" ]; do
    mkdir -p "$hold/visible-$i"
    mount --bind "$1" "$hold/visible-$i"
    show="$show $1"
    shift
    i=$((i + 1))
done
for folder in $hide; do mount -t tmpfs -o mode=1777 tmpfs "$folder"; done
i=0
for folder in $show; do
    mkdir -p "$folder"
    mount --bind "$hold/visible-$i" "$folder"
    i=$((i + 1))
done
exec "$@"
"""


@dataclass(frozen=True, slots=True)
class Namespace:
    """What processes do not see, and what they see nevertheless."""

    hidden: Sequence[Path]
    visible: Sequence[Path] = ()

    def command(self, command: Sequence[str], visible: Sequence[Path]) -> list[str]:
        """The command line that runs the command in a namespace of its own."""
        shown = [*self.visible, *visible]
        return [
            *_unshare(), "sh", "-c", _HIDE, "sh", str(_CACHE / "mounts"), str(_SPARK),
            str(len(self.hidden)), *map(str, self.hidden), str(len(shown)), *map(str, shown), *command,
        ]  # fmt: skip


def _unshare() -> list[str]:
    return ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Ur", "-m"]


def hidden_folders() -> list[Path]:
    """This checkout, its environment, and all temporary folders: every folder of a test is below one of them."""
    wanted = {Path(tempfile.gettempdir()), ROOT, Path(sys.prefix), Path(tocsin.__file__).parents[1]}
    folders = {folder.resolve() for folder in wanted}
    return sorted(
        folder for folder in folders if not any(folder != other and folder.is_relative_to(other) for other in folders)
    )


@cache
def why_no_namespaces() -> str | None:
    """Says why processes cannot have mount namespaces here; None if they can."""
    if shutil.which("unshare") is None:
        return "there is no unshare on this machine"
    with tempfile.TemporaryDirectory() as folder:
        command = [*_unshare(), "mount", "-t", "tmpfs", "tmpfs", folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    if done.returncode:
        return f"unshare does not work here: {done.stderr.strip()}"
    java = ensure_java().resolve()
    if any(java.is_relative_to(folder) for folder in hidden_folders()):
        return f"Java is in a folder that workers must not see: {java}"
    return None


def worker_python() -> Path:
    """Returns the Python of an environment that has nothing but what workers need; makes it at the first use."""
    return _environment_python(WORKER_LOCK)


def bare_python() -> Path:
    """Returns the Python of an environment that has nothing."""
    return _environment_python(None)


def _environment_python(lock_file: Path | None) -> Path:
    version = ".".join(map(str, sys.version_info[:3]))
    wanted = b"" if lock_file is None else lock_file.read_bytes()
    folder = _CACHE / f"worker-{hashlib.sha256(wanted + version.encode()).hexdigest()[:16]}"
    python = folder / "bin" / "python"
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "worker.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            base = Path(sys.base_prefix, "bin", f"python{version.rpartition('.')[0]}")
            subprocess.run([base, "-m", "venv", folder], check=True)
            pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--require-hashes"]
            if lock_file is not None:
                subprocess.run([*pip, "--only-binary", ":all:", "-r", lock_file], check=True)
            (folder / "complete").touch()
    return python


@dataclass(slots=True)
class SparkProcess:
    """A master or a worker."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def executors(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def kill(self) -> None:
        """Kills a worker with its executors, as a machine fails."""
        below = self.executors()
        self.process.kill()
        for child in below:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        self.process.wait(WITHIN_S)

    def said(self) -> str:
        return self.log.read_text(errors="replace")


@dataclass(slots=True)
class StandaloneCluster:
    """A running master with its workers."""

    url: str
    secret: str = field(repr=False)
    python: str
    folder: Path
    processes: dict[str, SparkProcess]

    @property
    def conf(self) -> dict[str, str]:
        """The settings of Spark with which a driver gets work done here."""
        return {
            "spark.authenticate.secret": self.secret,
            "spark.pyspark.python": self.python,
            "spark.executor.memory": "768m",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }

    @property
    def workers(self) -> list[SparkProcess]:
        return [process for name, process in self.processes.items() if name != "master"]

    def executor_logs(self) -> str:
        """All that executors and their Python workers have printed."""
        return "".join(file.read_text(errors="replace") for file in self.folder.glob("worker-*/work/*/*/std*"))


@contextmanager
def standalone_cluster(
    folder: Path, *, python: str, namespace: Namespace | None = None, port: int = 0, cores: int = 2
) -> Iterator[StandaloneCluster]:
    """Runs a master and two workers until the block ends. `folder` gets their logs and the workers' own files."""
    port, secret = port or free_port(), secrets.token_hex(24)
    url = f"spark://{LOOPBACK}:{port}"
    with ExitStack() as stack:
        running = StandaloneCluster(url, secret, python, folder, {})

        def run(name: str, host: str, *arguments: str) -> SparkProcess:
            process = _start(folder / name, host, secret, namespace, arguments)
            stack.callback(_stop, process)
            running.processes[name] = process
            return process

        master = run("master", LOOPBACK, _MASTER, "--port", str(port), "--webui-port", "0")
        _wait(master, lambda: _listens(port), "does not listen")
        for i in range(WORKERS):
            # Executors of one host read each other's files: separate machines have separate addresses.
            host = LOOPBACK if namespace is None else f"127.0.0.{i + 2}"
            run(
                f"worker-{i}", host, _WORKER, "--webui-port", "0", "--cores", str(cores), "--memory",
                "2g", "--work-dir", str(folder / f"worker-{i}" / "work"), url,
            )  # fmt: skip
        for worker in running.workers:
            _wait(worker, lambda worker=worker: _REGISTERED in worker.said(), "has not registered")
        yield running


def _start(folder: Path, host: str, secret: str, namespace: Namespace | None, arguments: Sequence[str]) -> SparkProcess:
    folder.mkdir(mode=0o700, parents=True)
    # In a file: everybody can read a command line.
    properties = folder / "spark.conf"
    properties.touch(0o600)
    settings = ("spark.authenticate true", f"spark.authenticate.secret {secret}", "spark.network.crypto.enabled true")
    properties.write_text("\n".join(settings))
    home = _SPARK if namespace is None else _CACHE / "mounts" / "spark"
    kind, *rest = arguments
    command = [str(home / "bin" / "spark-class"), kind, "--properties-file", str(properties), "--host", host, *rest]
    if namespace is not None:
        command = namespace.command(command, [folder])
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=_environment(folder, home, host), cwd="/", start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            preexec_fn=_end_with_parent,  # noqa: PLW1509 - it takes no lock
        )  # fmt: skip
    return SparkProcess(folder.name, process, log)


def _end_with_parent() -> None:
    """Has Linux end the process with this one, however this one ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _environment(folder: Path, home: Path, host: str) -> Mapping[str, str]:
    return {
        "PATH": os.defpath,
        "HOME": str(folder),
        "JAVA_HOME": str(ensure_java()),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": host,
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "SPARK_NO_DAEMONIZE": "1",
    }


def _stop(process: SparkProcess) -> None:
    left = process.executors()
    process.process.terminate()
    try:
        process.process.wait(10)
    except subprocess.TimeoutExpired:
        process.process.kill()
        process.process.wait(WITHIN_S)
    _, alive = psutil.wait_procs(left, timeout=10)
    for child in alive:
        with suppress(psutil.NoSuchProcess):
            child.kill()


def _wait(process: SparkProcess, is_ready: object, problem: str) -> None:
    assert callable(is_ready)
    until_s = time.monotonic() + WITHIN_S
    while not is_ready():
        if process.process.poll() is not None or time.monotonic() > until_s:
            raise AssertionError(f"the {process.name} of the Spark cluster {problem}: {process.said()[-2_000:]}")
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection((LOOPBACK, port), 1):
        return True
    return False


# ------------------------------------------------------------ ./dev spark-cluster


def settings_text(cluster: StandaloneCluster) -> str:
    conf = "".join(f'"{name}" = "{value}"\n' for name, value in cluster.conf.items())
    return f'[cluster.spark]\nmaster = "{cluster.url}"\n\n[cluster.spark.conf]\n{conf}'


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev spark-cluster", description=__doc__)
    parser.add_argument("--port", type=int, default=7077, help="of the master (default: %(default)s)")
    parser.add_argument("--cores", type=int, default=2, help="of each worker (default: %(default)s)")
    options = parser.parse_args()
    is_over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: is_over.set())
    with (
        tempfile.TemporaryDirectory(prefix="tocsin-spark-") as name,
        standalone_cluster(Path(name), python=sys.executable, port=options.port, cores=options.cores) as cluster,
    ):
        settings = Path(name, "tocsin.toml")
        settings.touch(0o600)
        settings.write_text(settings_text(cluster))
        print(
            f"a Spark master at {cluster.url} with {WORKERS} workers of {options.cores} cores each; Ctrl-C stops them"
        )
        print(f"settings for Tocsin, with the secret: {settings}")
        print("add cluster.storage.url and start it: ./dev tocsin up --config FILE", flush=True)
        while not is_over.wait(1):
            for process in cluster.processes.values():
                if process.process.poll() is not None:
                    raise SystemExit(f"the {process.name} has ended: {process.said()[-2_000:]}")


if __name__ == "__main__":
    main()
