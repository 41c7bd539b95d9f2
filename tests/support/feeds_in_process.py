"""One test's dataverse with feeds in it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.in_process_cluster import LocalCluster
from tests.support.waiting import WITHIN_S
from tocsin.cluster.feeds.running_feed import AcceptedRecords


class FeedDataverse:
    """One test's dataverse: scripts run in it, records go to its feeds."""

    def __init__(self, cluster: LocalCluster, dataverse: str) -> None:
        self.cluster = cluster
        self.dataverse = dataverse

    def run(self, script: str) -> list[dict[str, Any]]:
        return [outcome.summary for outcome in self.cluster.run(f"USE {self.dataverse}; {script}")][1:]

    def rows(self, query: str) -> list[Any]:
        return self.cluster.rows(f"USE {self.dataverse}; {query}")

    def held(self, dataset: str = "D") -> dict[Any, Any]:
        """Each key of the dataset, and what was said there."""
        return {row["id"]: row["said"] for row in self.rows(f"SELECT VALUE d FROM {dataset} d")}

    def send(self, *records: Any, feed: str = "F", key: str | None = None) -> AcceptedRecords:
        """Records, or one text as it is; when this returns, a query sees them."""
        (first, *_) = records
        body = first if isinstance(first, bytes) else "\n".join(json.dumps(record) for record in records).encode()
        name = f"{self.dataverse}.{feed}"
        return self.cluster.wait(self.cluster.cluster.feeds.accept(name, body, key, visible=True))

    def rejected(self, feed: str = "F") -> list[dict[str, Any]]:
        return self.rows(f"SELECT VALUE r FROM {feed}Rejected r ORDER BY r.record")


# ---------------------------------------------------------------- sockets

ANSWER_S = WITHIN_S


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextmanager
def connection(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), ANSWER_S) as made:
        yield made


def send(port: int, *pieces: bytes) -> None:
    with connection(port) as to:
        for piece in pieces:
            to.sendall(piece)
