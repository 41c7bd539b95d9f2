"""Health check of the cluster: on demand, and at most once a second."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Final

from tocsin.broker.cluster_link.client import ClusterClient
from tocsin.wire.errors import TocsinError

GOOD_FOR_S: Final = 1.0
"""How long an answer is cached, so that frequent health checks cost the cluster nothing."""
PATIENCE_S: Final = 3.0


class ClusterHealth:
    """Caches the cluster's health, so that many checks cause few requests."""

    def __init__(self, client: ClusterClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._asking = asyncio.Lock()
        self._asked_s = -math.inf
        self._beats = False

    async def is_up(self) -> bool:
        """Whether the cluster answers. If it does not, this calls the client's `on_away`."""
        async with self._asking:
            if self._clock() - self._asked_s >= GOOD_FOR_S:
                self._beats = await self._ask()
                self._asked_s = self._clock()
            return self._beats

    async def _ask(self) -> bool:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._client.known()
        except TimeoutError:
            self._client.on_away()
            return False
        except TocsinError as error:
            # A refusal is an answer, too: the cluster is up.
            return not error.retry
        return True
