"""The dataverse of one test on a real cluster in this process, with two datasets; its channels run by themselves."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from tests.support.feeds_in_process import FeedDataverse
from tests.support.in_process_cluster import LocalCluster
from tests.support.waiting import WITHIN_S, wait_until
from tocsin.cluster.channels.executions.running_channel import RunningChannel
from tocsin.cluster.channels.subscriptions import Subscriptions
from tocsin.rules.model.cursors import Range
from tocsin.store.channels.rows import BrokerName, ChannelState, RecordedExecution, SubscribeOutcome, SubscriptionRow
from tocsin.wire.cluster import SubscriptionRequest

SETUP = """
CREATE TYPE R AS { id: int, kind: string, n: bigint, at: double };
CREATE ACTIVE DATASET D(R) PRIMARY KEY id; CREATE ACTIVE DATASET E(R) PRIMARY KEY id;
CREATE BROKER b AT "http://127.0.0.1:9/"; CREATE BROKER other AT "http://127.0.0.1:9/";
"""
OF_KIND = "CREATE CONTINUOUS CHANNEL c(k) { SELECT VALUE d.id FROM D d WHERE is_new(d) AND d.kind = k };"


def record(id_: int, kind: str = "a", n: int = 0, at: float = 0.0) -> dict[str, Any]:
    return {"id": id_, "kind": kind, "n": n, "at": at}


class RunningChannelDataverse(FeedDataverse):
    """A dataverse whose channels run by themselves; results and executions are read from the store, without Spark."""

    def __init__(self, cluster: LocalCluster, dataverse: str) -> None:
        super().__init__(cluster, dataverse)
        self.parts = cluster.cluster
        self.wait = cluster.wait

    # ------------------------------------------------------------ doing

    def write(self, *records: dict[str, Any], dataset: str = "D", verb: str = "UPSERT") -> None:
        """One commit."""
        self.run(f"{verb} INTO {dataset} {json.dumps(records)}")

    def subscribe(self, *arguments: str, channel: str = "c", broker: str = "b") -> str:
        (made,) = self.run(f"SUBSCRIBE TO {channel}({', '.join(arguments)}) ON {broker}")
        return str(made["subscription"])

    def subscribe_all(self, *requests: SubscriptionRequest, channel: str = "c") -> list[SubscribeOutcome]:
        entry, broker = self.running(channel).entry, BrokerName(self.dataverse, "b")
        subscriptions = Subscriptions(self.parts.catalog, self.parts.channel_store)
        return self.wait(subscriptions.subscribe(entry, broker, requests))

    def execute(self, channel: str = "c", at: datetime | None = None) -> None:
        self.wait(self.running(channel).execute(at))

    # ------------------------------------------------------------ looking

    def running(self, channel: str = "c") -> RunningChannel:
        (found,) = [running for running in self.running_all() if running.entry.name == channel]
        return found

    def running_all(self) -> list[RunningChannel]:
        return [channel for channel in self.parts.channels.list_running() if channel.entry.dataverse == self.dataverse]

    def number(self, dataset: str = "D") -> int:
        return self.parts.tables.table(self.parts.catalog.catalog.dataset(self.dataverse, dataset)).number

    def folder(self, dataset: str = "D") -> str:
        return self.parts.catalog.catalog.dataset(self.dataverse, dataset).folder

    def state(self, channel: str = "c") -> ChannelState:
        return self.wait(self.parts.channel_store.state(self._id(channel)))

    def executions(self, channel: str = "c") -> list[RecordedExecution]:
        return self.wait(self.parts.channel_store.executions(self._id(channel)))

    def subscriptions(self, channel: str = "c") -> list[SubscriptionRow]:
        return self.wait(self.parts.channel_store.subscriptions(self._id(channel)))

    def told(self, subscription: str, channel: str = "c") -> list[Any]:
        """What this subscription was told, in order."""
        return self.wait(self._told(self._id(channel), subscription))

    async def _told(self, channel_id: int, subscription: str) -> list[Any]:
        one = await self.parts.channel_store.subscription(channel_id, subscription)
        assert one is not None
        return [
            json.loads(result.payload)
            async for chunk in self.parts.channel_store.fetch([Range(one.interest, one.since)])
            for part in chunk
            for result in part.results
        ]

    def caught_up(self, channel: str = "c", datasets: Sequence[str] = ("D",)) -> None:
        """Waits until it has read all there is."""
        wanted = {self.folder(dataset): self.number(dataset) for dataset in datasets}
        wait_until(lambda: self.state(channel).vector == wanted, f"{channel} reads up to {wanted}", WITHIN_S)

    def told_once(self, subscription: str, wanted: Iterable[Any], channel: str = "c") -> None:
        """All of these, in any order, and nothing twice."""
        self.caught_up(channel)
        assert sorted(self.told(subscription, channel)) == sorted(wanted)

    def _id(self, channel: str) -> int:
        return self.parts.catalog.catalog.channel(self.dataverse, channel).channel_id
