"""Functions in Python in a real cluster: one that hangs ends with its statement's time, and with the cluster."""

from __future__ import annotations

import http.client
import threading
from contextlib import suppress
from pathlib import Path

import psutil

from tests.support.real_processes import ClusterHttpClient, cluster, tocsin
from tests.support.waiting import WITHIN_S, wait_until

# Nothing that Python could end by itself: not even the limit of a call reaches it while it sleeps in C.
HANGING = """
import os, pathlib, signal, time

def f(begun):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    pathlib.Path(begun).write_text(str(os.getpid()))
    while True:
        time.sleep(60)
"""


def test_a_hanging_function_ends_with_its_statements_time_and_with_a_killed_cluster(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "python").mkdir(parents=True)
    (data / "python" / "hanging.py").write_text(HANGING)
    secret = tocsin("token", "create", "ada", "--role", "admin", "--data", str(data)).stdout.strip()
    with cluster(data) as process:
        made = 'CREATE FUNCTION hang(x) LANGUAGE PYTHON AS "hanging:f"'
        refused = process.client.run(made)
        assert refused.status == 403
        assert f"tocsin token create NAME --role admin --data {data};" in refused.error["hint"]
        assert ClusterHttpClient(process.client.url, secret).run(made).status == 200
        first = tmp_path / "first"
        while not first.exists():  # on a busy machine its time may be up before it begins
            answer = process.client.run(f'hang("{first}")', "?timeout=3")
            assert answer.error["code"] == "stopped", answer.body
        stuck = int(first.read_text())
        wait_until(lambda: not psutil.pid_exists(stuck), "its worker is gone")
        assert process.client.rows("1 + 1") == [2]

        second = tmp_path / "second"
        asking = threading.Thread(target=_ask, args=(process.client, f'hang("{second}")'))
        asking.start()
        wait_until(lambda: second.exists() and bool(second.read_text()), "the function runs")
        workers = [item for item in process.java() if _is_worker(item)]
        assert int(second.read_text()) in {worker.pid for worker in workers}
        process.kill()
        _, alive = psutil.wait_procs(workers, timeout=WITHIN_S)
        assert alive == []
        asking.join()


def _ask(client: ClusterHttpClient, script: str) -> None:
    with suppress(OSError, http.client.HTTPException):
        client.run(script)


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "pyspark.daemon" in process.cmdline()
    except psutil.Error:
        return False
