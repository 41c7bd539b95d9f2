"""Finds when an execution of a channel ended: the `deliveryTime` of its results, in datasets and notifications."""

from __future__ import annotations

from typing import Final

from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import ResultRow

_ALL: Final = 1 << 62
_LATEST: Final = 100


class ExecutionEnds:
    """When the executions of a channel ended: from then on their results could be delivered."""

    def __init__(self, store: ChannelStore, channel_id: int) -> None:
        self._store = store
        self._channel_id = channel_id
        self._ends_us: dict[int, int] = {}

    async def of(self, result: ResultRow) -> int:
        number = result.cursor.execution
        # Results are mostly asked for soon after their execution.
        for limit in (_LATEST, _ALL):
            if number not in self._ends_us:
                executions = await self._store.executions(self._channel_id, limit=limit)
                self._ends_us |= {each.number: each.ended_us for each in executions if each.reason is None}
        # If retention has removed the execution meanwhile, its instant is the nearest that is known.
        return self._ends_us.setdefault(number, result.executed_us)
