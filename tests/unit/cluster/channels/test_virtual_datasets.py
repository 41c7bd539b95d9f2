"""The datasets that show what channels did."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from tocsin.cluster.catalog.entries import ChannelEntry
from tocsin.cluster.catalog.metadata import DATASETS
from tocsin.cluster.channels.virtual_datasets import VirtualDatasets
from tocsin.store.channels.rows import RecordedExecution

CHANNEL = ChannelEntry(
    "v", "C", channel_id=1, continuous=True, push=False, function=None, parameters=(), types=(), body="", period=None,
    anchor=datetime.now(UTC), retention_s=None, retention_bytes=None, uses=(),
)  # fmt: skip


class FakeStore:
    """Holds one execution."""

    def __init__(self, details: dict[str, Any]) -> None:
        self.execution = RecordedExecution(
            number=2,
            epoch=1,
            started_us=1,
            ended_us=2,
            vector={},
            tick_us=None,
            results=0,
            reason=None,
            details=details,
        )

    async def executions(self, _channel_id: int, *, limit: int) -> list[RecordedExecution]:
        return [self.execution]


@pytest.mark.parametrize("word", ["poison_records", "culprits"], ids=["now", "as in stores of earlier versions"])
async def test_an_execution_names_its_poison_records(word: str) -> None:
    store = FakeStore({word: [{"dataset": "v.D", "key": ["1"], "reason": "zero", "interest": None, "known": False}]})
    shown = VirtualDatasets(cast("Any", store), lambda: ())
    kind = DATASETS["ChannelExecution"].type
    rows = await asyncio.to_thread(shown.executions, [CHANNEL], kind)
    (row,) = rows.to_pylist()
    (named,) = next(value for name, value in row.items() if "PoisonRecords" in name)
    assert [value for value in named.values() if value is not None] == ["v.D", ["1"], "zero"]
