"""A cluster in the test process behind its real HTTP server, for clients that block."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.support.in_process_cluster import LocalCluster
from tests.support.real_processes import ClusterHttpClient
from tocsin.compose import StoredTokens
from tocsin.serving.application import bind_socket, listen


class ServedCluster(LocalCluster):
    """A `LocalCluster` that also listens on a free port; `client` asks it there, as an admin."""

    def __init__(self, spark: SparkSession, data: Path, **flags: Any) -> None:
        super().__init__(spark, data, **flags)
        _, secret = self.wait(StoredTokens(self.cluster.store).create("client", "admin"))
        self.client = ClusterHttpClient(self.wait(self._stack.enter_async_context(self._served())), secret)

    @asynccontextmanager
    async def _served(self) -> AsyncIterator[str]:
        with bind_socket("127.0.0.1", 0) as (sock, address):
            async with listen(self.cluster.app, sock):
                yield address
