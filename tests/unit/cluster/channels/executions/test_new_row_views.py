"""Views that channels share: made once, there while somebody uses them, and few when nobody does."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tocsin.cluster.channels.executions.new_row_views import NewRowViews
from tocsin.pipeline.datasets.snapshots import Snapshot
from tocsin.pipeline.views import DatasetViews
from tocsin.rules.model.types import ObjectType

MOST_IDLE = 8


@dataclass
class FakeViews:
    """Names that are there, and the rows behind them."""

    there: dict[str, Any] = field(default_factory=dict)
    made: int = 0
    fails: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def of_rows(self, rows: pa.Table) -> str:
        if self.fails:
            raise OSError("no room")
        with self.lock:
            self.made += 1
            self.there[f"view{self.made}"] = rows
            return f"view{self.made}"

    def of_part(self, snapshot: Snapshot, _type: Any) -> str:
        with self.lock:
            self.made += 1
            self.there[f"view{self.made}"] = weakref.ref(snapshot)
            return f"view{self.made}"

    def drop(self, name: str) -> None:
        with self.lock:
            del self.there[name]


def reading(number: int, since: int = 0, *, in_memory: bool = True) -> Any:
    rows = pa.table({"id": list(range(number))}) if in_memory else None
    snapshot = Snapshot(("file",), number, number, None)
    return SimpleNamespace(
        since={"d": since}, snapshots={"d": snapshot}, entries={"d": SimpleNamespace(type=None)},
        new_rows_in_memory=lambda _: rows, rows_in_files=lambda _: snapshot,
    )  # fmt: skip


@pytest.fixture
def views() -> FakeViews:
    return FakeViews()


@pytest.fixture
def new_rows(views: FakeViews) -> NewRowViews:
    engine: Any = SimpleNamespace(views=views, generation=1)
    return NewRowViews(engine, most_idle=MOST_IDLE, most_idle_bytes=1_000_000)


def test_channels_that_ask_for_the_same_rows_share_a_view(views: FakeViews, new_rows: NewRowViews) -> None:
    with new_rows.view(reading(3), "d") as first, new_rows.view(reading(3), "d") as second:
        assert first == second
    with new_rows.view(reading(3), "d") as third, new_rows.view(reading(3, since=1), "d") as other:
        assert third == first
        assert other != first
    assert views.made == 2


def test_a_view_stays_while_it_is_used_however_many_others_come(views: FakeViews, new_rows: NewRowViews) -> None:
    with new_rows.view(reading(1_000), "d") as mine:
        for number in range(100):
            with new_rows.view(reading(number), "d"):
                pass
        assert mine in views.there
    assert len(views.there) <= MOST_IDLE


def test_rows_that_nobody_uses_are_few_also_in_bytes(views: FakeViews) -> None:
    engine: Any = SimpleNamespace(views=views, generation=1)
    new_rows = NewRowViews(engine, most_idle_bytes=1_000)
    for number in (100, 101, 102):
        with new_rows.view(reading(number), "d"):
            pass
    assert len(views.there) == 1


def test_rows_in_files_keep_their_snapshot_while_the_view_is_there(views: FakeViews, new_rows: NewRowViews) -> None:
    with new_rows.view(reading(5, in_memory=False), "d") as name:
        snapshot = views.there[name]
    gc.collect()
    assert snapshot() is not None
    for number in range(10, 10 + MOST_IDLE):
        with new_rows.view(reading(number), "d"):
            pass
    gc.collect()
    assert name not in views.there
    assert snapshot() is None


def test_a_view_that_could_not_be_made_is_made_by_the_next_who_asks(views: FakeViews, new_rows: NewRowViews) -> None:
    views.fails = True
    with pytest.raises(OSError, match="no room"), new_rows.view(reading(2), "d"):
        raise AssertionError
    views.fails = False
    with new_rows.view(reading(2), "d") as name:
        assert name in views.there


def test_many_threads_never_see_a_view_that_is_gone(views: FakeViews, new_rows: NewRowViews) -> None:
    def use(worker: int) -> None:
        for i in range(200):
            with new_rows.view(reading((worker + i) % 23), "d") as name:
                assert views.there[name].num_rows == (worker + i) % 23

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(use, range(8)))
    assert len(views.there) <= MOST_IDLE


def test_a_pinned_view_of_a_state_outlives_many_others() -> None:
    there: set[str] = set()
    frame = SimpleNamespace(createOrReplaceTempView=there.add)
    spark: Any = SimpleNamespace(
        catalog=SimpleNamespace(dropTempView=there.discard), createDataFrame=lambda _rows, _schema: frame
    )
    views = DatasetViews(spark, most=4)
    kind = ObjectType((), open=True)

    def view(number: int, *, pinned: bool = False) -> str:
        return views.of_snapshot("d", Snapshot((), number, number, None), kind, pinned=pinned)

    with ExitStack() as held:
        for _ in range(2):
            name = view(0, pinned=True)
            held.callback(views.unpin, name)
        for number in range(1, 20):
            view(number)
        assert name in there
        assert len(there) == 4
    for number in range(20, 30):
        view(number)
    assert name not in there
    assert len(there) == 4
    assert view(29) in there
