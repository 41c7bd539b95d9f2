"""Shows the subscriptions and results of a channel as datasets: `<channel>Subscriptions` and `<channel>Results`.

The store has each result once per interest. These datasets repeat it for every subscription to the interest, from the
subscription's start on, as the original BAD platform does.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID, uuid5

import orjson
import pyarrow as pa

from tocsin.clock import from_us
from tocsin.cluster.catalog.entries import ChannelEntry, ProcedureEntry
from tocsin.cluster.catalog.metadata import RESULTS_KEYS, RESULTS_TYPE, SUBSCRIPTIONS_KEYS, SUBSCRIPTIONS_TYPE
from tocsin.cluster.catalog.refs import Ref
from tocsin.cluster.channels.execution_ends import ExecutionEnds
from tocsin.cluster.channels.parameters import ParameterValues
from tocsin.pipeline.datasets import layout
from tocsin.rules.model.cursors import InterestId, Range
from tocsin.rules.model.open_form import loads_value
from tocsin.rules.model.types import Field, ObjectType
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import RecordedExecution, ResultRow, SubscriptionRow
from tocsin.wire.errors import NotFoundError

# At most this many executions are shown per channel, the latest.
_EXECUTIONS: Final = 10_000
_NAMESPACE = UUID("6a0ba7c6-51f5-4c3e-9a3d-2f2f0f6f7b11")


@dataclass(frozen=True, slots=True)
class VirtualDataset:
    """One of the two datasets that a channel has."""

    channel: ChannelEntry
    ref: Ref
    active: None = None

    @property
    def dataverse(self) -> str:
        return self.ref.dataverse

    @property
    def name(self) -> str:
        return self.ref.name

    @property
    def is_results(self) -> bool:
        return self.ref == self.channel.results

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        return RESULTS_KEYS if self.is_results else SUBSCRIPTIONS_KEYS

    @property
    def type(self) -> ObjectType:
        if self.is_results:
            return RESULTS_TYPE
        parameters = (Field(f"param{i}", kind) for i, kind in enumerate(self.channel.types))
        return ObjectType((*SUBSCRIPTIONS_TYPE.fields, *parameters), open=False)


@dataclass(frozen=True, slots=True)
class ProcedureRun:
    """One run of a procedure at a tick. `reason` is set if the run failed."""

    entry: ProcedureEntry
    arguments: str
    tick: datetime
    started: datetime
    ended: datetime
    missed: int
    reason: str | None


class VirtualDatasets:
    """Reads the datasets of channels for queries. It is called on query threads."""

    def __init__(self, store: ChannelStore, procedures: Callable[[], Sequence[ProcedureRun]]) -> None:
        self._store = store
        self._procedures = procedures
        self._loop = asyncio.get_running_loop()

    def rows(self, shown: VirtualDataset) -> pa.Table:
        rows = self._results(shown) if shown.is_results else self._subscriptions(shown)
        return layout.to_arrow(asyncio.run_coroutine_threadsafe(rows, self._loop).result(), shown.type)

    def executions(self, channels: Sequence[ChannelEntry], kind: ObjectType) -> pa.Table:
        """Returns the rows of `Metadata.ChannelExecution`."""
        rows = asyncio.run_coroutine_threadsafe(self._executions(channels), self._loop).result()
        return layout.to_arrow(rows, kind)

    def runs(self, kind: ObjectType) -> pa.Table:
        """Returns the rows of `Metadata.ProcedureExecution`."""

        async def looked() -> list[dict[str, Any]]:
            return [_run(run) for run in self._procedures()]

        return layout.to_arrow(asyncio.run_coroutine_threadsafe(looked(), self._loop).result(), kind)

    async def _executions(self, channels: Sequence[ChannelEntry]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for channel in channels:
            with suppress(NotFoundError):  # the channel was dropped meanwhile
                rows += [
                    _execution(channel, execution)
                    for execution in await self._store.executions(channel.channel_id, limit=_EXECUTIONS)
                ]
        return rows

    async def _subscriptions(self, shown: VirtualDataset) -> list[dict[str, Any]]:
        return [
            {
                "subscriptionId": _id_value(subscription.id), "DataverseName": subscription.broker.dataverse,
                "BrokerName": subscription.broker.name,
                **{f"param{i}": value for i, value in enumerate(ParameterValues.values(subscription.parameters))},
            }
            for subscription in await all_subscriptions(self._store, shown.channel.channel_id)
        ]  # fmt: skip

    async def _results(self, shown: VirtualDataset) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        ends = ExecutionEnds(self._store, shown.channel.channel_id)
        async for _, result, ids in visible_results(self._store, shown.channel.channel_id):
            value = orjson.loads(result.payload)
            delivered = from_us(await ends.of(result))
            rows += [
                {
                    "resultId": result_id, "channelExecutionTime": from_us(result.executed_us),
                    "subscriptionId": _id_value(subscription_id), "deliveryTime": delivered, "result": value,
                }
                for result_id, subscription_id in ids.items()
            ]  # fmt: skip
        return rows


def _id_value(subscription_id: str) -> UUID | str:
    """Returns the id of a subscription as queries see it: a uuid, or the text that the client chose."""
    try:
        value = UUID(subscription_id)
    except ValueError:
        return subscription_id
    return value if str(value) == subscription_id else subscription_id


async def all_subscriptions(store: ChannelStore, channel_id: int) -> list[SubscriptionRow]:
    subscriptions: list[SubscriptionRow] = []
    while True:
        page = await store.subscriptions(channel_id, after=subscriptions[-1].id if subscriptions else "")
        if not page:
            return subscriptions
        subscriptions += page


async def visible_results(
    store: ChannelStore, channel_id: int
) -> AsyncIterator[tuple[InterestId, ResultRow, dict[UUID, str]]]:
    """Yields each stored result with the subscriptions that see it, as `resultId` → `subscriptionId`."""
    subscriptions: dict[InterestId, list[SubscriptionRow]] = defaultdict(list)
    for subscription in await all_subscriptions(store, channel_id):
        subscriptions[subscription.interest].append(subscription)
    ranges = [
        Range(interest, min(subscription.since for subscription in interest_subscriptions))
        for interest, interest_subscriptions in subscriptions.items()
    ]
    async for chunk in store.fetch(ranges):
        for part in chunk:
            interest = ranges[part.range].interest
            for result in part.results:
                ids = {
                    uuid5(_NAMESPACE, f"{subscription.id} {result.cursor}"): subscription.id
                    for subscription in subscriptions[interest]
                    if subscription.since < result.cursor
                }
                yield interest, result, ids


def _run(one: ProcedureRun) -> dict[str, Any]:
    entry = one.entry
    row = {
        "DataverseName": entry.dataverse, "ProcedureName": entry.name, "Arguments": loads_value(one.arguments),
        "Tick": one.tick, "Started": one.started, "Ended": one.ended, "MissedTicks": one.missed,
    }  # fmt: skip
    return row if one.reason is None else {**row, "Reason": one.reason}


def _execution(channel: ChannelEntry, one: RecordedExecution) -> dict[str, Any]:
    row: dict[str, Any] = {
        "DataverseName": channel.dataverse, "ChannelName": channel.name, "Execution": one.number,
        "Started": from_us(one.started_us), "Ended": from_us(one.ended_us), "Results": one.results,
        "PoisonRecords": [
            {
                "Dataset": poison_record["dataset"], "Key": poison_record["key"], "Reason": poison_record["reason"],
                **({} if poison_record.get("interest") is None else {"Interest": poison_record["interest"]}),
            }
            # Stores of earlier versions call them culprits.
            for poison_record in one.details.get("poison_records") or one.details.get("culprits", ())
        ],
        "InterestsAside": one.details.get("interests_aside", 0),
    }  # fmt: skip
    if one.tick_us is not None:
        row["Tick"] = from_us(one.tick_us)
    if one.reason is not None:
        row["Reason"] = one.reason
    return row
