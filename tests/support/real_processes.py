"""Real cluster processes for tests: started, asked over HTTP, killed, and seen to be gone."""

from __future__ import annotations

import http.client
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import psutil

from tests.support.waiting import WITHIN_S

START_S = WITHIN_S
STOP_S = WITHIN_S
ANSWER_S = WITHIN_S
# A life of seconds does not repay what Java's second compiler costs: two fifths of all CPU.
QUICK_JAVA = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}


def environment(**more: str) -> dict[str, str]:
    """Ours without any setting of Tocsin's, so that nothing of the machine leaks into a test."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOCSIN_")}
    # An entry that is not a name of a folder would be one relative to the child's.
    path = os.pathsep.join(str(Path(each).absolute()) for each in sys.path if each)
    return {**kept, "PYTHONPATH": os.pathsep.join([path, str(Path(__file__).parents[2])]), **more}


def tocsin(*arguments: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs one command of the command line to its end."""
    return subprocess.run(
        [sys.executable, "-m", "tocsin.cli.main", *arguments],
        input=stdin,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=ANSWER_S,
        check=False,
    )


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def results(self) -> list[dict[str, Any]]:
        assert self.status == 200, self.body
        results: list[dict[str, Any]] = self.json["results"]
        return results

    @property
    def rows(self) -> list[Any]:
        """Those of the last statement."""
        rows: list[Any] = self.results[-1]["rows"]
        return rows

    @property
    def error(self) -> dict[str, Any]:
        assert self.status >= 400, self.body
        error: dict[str, Any] = self.json["error"]
        return error

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]


class ClusterHttpClient:
    """Asks one cluster, one request per connection."""

    def __init__(self, url: str, token: str | None = None) -> None:
        place = urlsplit(url)
        assert place.hostname is not None
        self.url = url
        self.host, self.port = place.hostname, place.port
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.host, self.port, timeout=ANSWER_S)

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> HttpAnswer:
        connection = self.connection()
        try:
            connection.request(method, path, body, {**self._headers, **headers})
            response = connection.getresponse()
            return HttpAnswer(response.status, response.read())
        finally:
            connection.close()

    def run(self, script: str | bytes, query: str = "", **headers: str) -> HttpAnswer:
        body = script.encode() if isinstance(script, str) else script
        return self.ask("POST", f"/v1/statements{query}", body, **{"Content-Type": "text/plain", **headers})

    def rows(self, script: str) -> list[Any]:
        return self.run(script).rows

    def dies_at(self, script: str) -> None:
        """The cluster dies over this script, and the client sees the connection break."""
        try:
            answer = self.run(script)
        except (OSError, http.client.HTTPException):
            return
        raise AssertionError(f"the cluster lived on: {answer}")


class ClusterProcess:
    """`tocsin up` in a process of its own. Use it as a context manager: nothing of it is left afterwards."""

    def __init__(
        self,
        data: Path,
        *arguments: str,
        crash_at: str | None = None,
        conf: Mapping[str, str] | None = None,
        **variables: str,
    ) -> None:
        """`conf`: settings of Spark's."""
        self.data = data
        entries = ", ".join(f'"{name}" = "{value}"' for name, value in {**QUICK_JAVA, **(conf or {})}.items())
        more = {"TOCSIN_CLUSTER__SPARK__CONF": f"{{{entries}}}", **variables}
        if crash_at is not None:
            more["TOCSIN_CRASH_AT"] = crash_at
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tocsin.cli.main", "up", "--data", str(data), "--port", "0", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**more),
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._out: list[str] = []
        self._err: list[str] = []
        # Both pipes are emptied all the time: a full one would stop the cluster.
        self._readers = [
            threading.Thread(target=self._read_out, daemon=True),
            threading.Thread(target=self._read_err, daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        self._jvms: list[psutil.Process] = []
        self._client: ClusterHttpClient | None = None

    def _read_out(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._out.append(line)
            self._lines.put(line)
        self._lines.put(None)

    def _read_err(self) -> None:
        assert self._process.stderr is not None
        self._err.extend(self._process.stderr)

    # ------------------------------------------------------------ life

    def ready(self) -> Self:
        """Waits for the line that says so."""
        line = self._lines.get(timeout=START_S)
        assert line is not None, f"it ended with {self._process.wait()}: {self.err}"
        assert line.startswith("tocsin cluster ready at http://"), line
        self._client = ClusterHttpClient(line.split()[4])
        self._jvms = self.java()
        assert self._jvms, "there is no Java process"
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.kill()
        self._reap()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def client(self) -> ClusterHttpClient:
        assert self._client is not None, "wait until it is ready"
        return self._client

    def java(self) -> list[psutil.Process]:
        """The JVM that works for it (and the shell that started it, while there is one)."""
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()

    def wait(self, within_s: float = STOP_S) -> int:
        """Its exit code; its Java is gone too when this returns."""
        code = self._process.wait(within_s)
        self._reap()
        return code

    def _reap(self) -> None:
        self._process.wait(STOP_S)
        _, alive = psutil.wait_procs(self._jvms, timeout=STOP_S)
        for reader in self._readers:
            reader.join(STOP_S)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        for process in alive:
            process.kill()
        assert not alive, f"left running: {alive}"

    def died(self) -> None:
        """It was killed at its crash point."""
        assert self.wait() == -signal.SIGKILL, self.err

    @property
    def out(self) -> str:
        return "".join(self._out)

    @property
    def err(self) -> str:
        return "".join(self._err)


@contextmanager
def cluster(data: Path, *arguments: str, crash_at: str | None = None, **variables: str) -> Iterator[ClusterProcess]:
    """A cluster that is ready."""
    with ClusterProcess(data, *arguments, crash_at=crash_at, **variables) as process:
        yield process.ready()


def folders(data: Path) -> set[str]:
    """The names of the dataset folders on the disk."""
    return {path.name for path in (data / "datasets").iterdir()}


def described(client: ClusterHttpClient) -> dict[str, list[Mapping[str, Any]]]:
    """All that Metadata says."""
    names = ("Dataverse", "Datatype", "Dataset", "Index", "Function", "Feed", "FeedConnection")
    answer = client.run("".join(f"SELECT VALUE m FROM Metadata.`{name}` m;" for name in names))
    return {name: result["rows"] for name, result in zip(names, answer.results, strict=True)}
