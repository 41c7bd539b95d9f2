"""What a channel has, shown as datasets: `<channel>Subscriptions` and `<channel>Results`, in the original's shape.

Underneath, results are kept once per interest; here every subscription has its own, from its own start on.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID, uuid5

import orjson
import pyarrow as pa

from tocsin.cluster.catalog.entries import ChannelEntry
from tocsin.cluster.catalog.refs import Ref
from tocsin.cluster.channels.executions.running_channel import moment
from tocsin.cluster.channels.parameters import ParameterValues
from tocsin.cluster.procedures.procedure_run import ProcedureRun
from tocsin.pipeline.datasets import layout
from tocsin.rules.model import types as t
from tocsin.rules.model.cursors import Range
from tocsin.rules.model.types import Field, ObjectType
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import RecordedExecution, SubscriptionRow
from tocsin.wire.errors import NotFoundError

_RESULTS = ObjectType(
    (
        Field("resultId", t.UUID), Field("channelExecutionTime", t.DATETIME), Field("subscriptionId", t.STRING),
        Field("result", t.ANY),
    ),
    open=False,
)  # fmt: skip
# Of each channel so many are shown, the latest.
EXECUTIONS: Final = 10_000
_NAMESPACE = UUID("6a0ba7c6-51f5-4c3e-9a3d-2f2f0f6f7b11")


@dataclass(frozen=True, slots=True)
class VirtualDataset:
    """One of a channel's datasets."""

    channel: ChannelEntry
    ref: Ref

    @property
    def dataverse(self) -> str:
        return self.ref.dataverse

    @property
    def name(self) -> str:
        return self.ref.name

    @property
    def type(self) -> ObjectType:
        if self.ref == self.channel.results:
            return _RESULTS
        own = (Field("subscriptionId", t.STRING), Field("DataverseName", t.STRING), Field("BrokerName", t.STRING))
        return ObjectType((*own, *(Field(f"param{i}", kind) for i, kind in enumerate(self.channel.types))), open=False)


class VirtualDatasets:
    """Reads a channel's datasets for those who run queries, on threads of theirs."""

    def __init__(self, store: ChannelStore, procedures: Callable[[], Sequence[ProcedureRun]]) -> None:
        self._store = store
        self._procedures = procedures
        self._loop = asyncio.get_running_loop()

    def rows(self, shown: VirtualDataset) -> pa.Table:
        found = self._results(shown) if shown.ref == shown.channel.results else self._subscriptions(shown)
        return layout.to_arrow(asyncio.run_coroutine_threadsafe(found, self._loop).result(), shown.type)

    def executions(self, channels: Sequence[ChannelEntry], kind: ObjectType) -> pa.Table:
        """`Metadata.ChannelExecution`."""
        found = asyncio.run_coroutine_threadsafe(self._executions(channels), self._loop).result()
        return layout.to_arrow(found, kind)

    def runs(self, kind: ObjectType) -> pa.Table:
        """`Metadata.ProcedureExecution`."""

        async def looked() -> list[dict[str, Any]]:
            return [_run(one) for one in self._procedures()]

        return layout.to_arrow(asyncio.run_coroutine_threadsafe(looked(), self._loop).result(), kind)

    async def _executions(self, channels: Sequence[ChannelEntry]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for channel in channels:
            with suppress(NotFoundError):  # dropped this moment
                rows += [
                    _execution(channel, one)
                    for one in await self._store.executions(channel.channel_id, limit=EXECUTIONS)
                ]
        return rows

    async def _all(self, channel_id: int) -> list[SubscriptionRow]:
        found: list[SubscriptionRow] = []
        while True:
            page = await self._store.subscriptions(channel_id, after=found[-1].id if found else "")
            if not page:
                return found
            found += page

    async def _subscriptions(self, shown: VirtualDataset) -> list[dict[str, Any]]:
        return [
            {
                "subscriptionId": one.id, "DataverseName": one.broker.dataverse, "BrokerName": one.broker.name,
                **{f"param{i}": value for i, value in enumerate(ParameterValues.values(one.parameters))},
            }
            for one in await self._all(shown.channel.channel_id)
        ]  # fmt: skip

    async def _results(self, shown: VirtualDataset) -> list[dict[str, Any]]:
        holders: dict[int, list[SubscriptionRow]] = defaultdict(list)
        for one in await self._all(shown.channel.channel_id):
            holders[one.interest].append(one)
        ranges = [Range(interest, min(one.since for one in held)) for interest, held in holders.items()]
        rows: list[dict[str, Any]] = []
        async for chunk in self._store.fetch(ranges):
            for part in chunk:
                for result in part.results:
                    value = orjson.loads(result.payload)
                    rows += [
                        {
                            "resultId": uuid5(_NAMESPACE, f"{one.id} {result.cursor}"),
                            "channelExecutionTime": moment(result.executed_us), "subscriptionId": one.id,
                            "result": value,
                        }
                        for one in holders[ranges[part.range].interest] if one.since < result.cursor
                    ]  # fmt: skip
        return rows


def _run(one: ProcedureRun) -> dict[str, Any]:
    entry = one.entry
    row = {
        "DataverseName": entry.dataverse, "ProcedureName": entry.name, "Tick": one.tick, "Started": one.started,
        "Ended": one.ended, "MissedTicks": one.missed,
    }  # fmt: skip
    return row if one.reason is None else {**row, "Reason": one.reason}


def _execution(channel: ChannelEntry, one: RecordedExecution) -> dict[str, Any]:
    row: dict[str, Any] = {
        "DataverseName": channel.dataverse, "ChannelName": channel.name, "Execution": one.number,
        "Started": moment(one.started_us), "Ended": moment(one.ended_us), "Results": one.results,
        "Culprits": [
            {
                "Dataset": each["dataset"], "Key": each["key"], "Reason": each["reason"],
                **({} if each.get("interest") is None else {"Interest": each["interest"]}),
            }
            for each in one.details.get("culprits", ())
        ],
        "InterestsAside": one.details.get("interests_aside", 0),
    }  # fmt: skip
    if one.tick_us is not None:
        row["Tick"] = moment(one.tick_us)
    if one.reason is not None:
        row["Reason"] = one.reason
    return row
