"""A dataset against a plain dictionary: any sequence of changes, upkeep and restarts."""

from __future__ import annotations

import math
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.s3_server import S3Server, read_data_file
from tests.support.small_tables import EAGER
from tocsin.pipeline.datasets import keys as keyed
from tocsin.pipeline.datasets.table import DatasetTable, Snapshot
from tocsin.pipeline.datasets.upkeep import upkeep
from tocsin.storage.interface import StorageFolder
from tocsin.storage.local import LocalFolder
from tocsin.wire.errors import ConflictError, NotFoundError

SCHEMA = pa.schema(
    [("level", pa.float64()), ("zone", pa.struct([("code", pa.int64()), ("name", pa.string())])), ("said", pa.string())]
)
KEYS = (("level",), ("zone", "code"))
HISTORY = 5

Key = tuple[float, int]
KEY_VALUES = st.tuples(
    st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf]),
    # Neighbours that a detour through double would make equal.
    st.sampled_from([0, 2**53, 2**53 + 1, -(2**63)]),
)
BATCHES = st.lists(KEY_VALUES, min_size=1, max_size=5)
STEPS: st.SearchStrategy[tuple[str, list[Key]]] = st.one_of(
    st.tuples(st.sampled_from(["insert", "insert", "upsert", "delete", "load"]), BATCHES),
    st.tuples(st.sampled_from(["upkeep", "upkeep", "reopen", "delete all"]), st.just([])),
)


def same(key: Key) -> tuple[bytes, int]:
    """Keys are the same where these are."""
    level = math.nan if math.isnan(key[0]) else key[0] + 0.0
    return struct.pack("<d", level), key[1]


@dataclass
class DatasetModel:
    """What a dataset is, said in the plainest way."""

    state: dict[tuple[bytes, int], tuple[str, int]] = field(default_factory=dict)
    states: list[dict[tuple[bytes, int], tuple[str, int]]] = field(default_factory=lambda: [{}])
    times: list[datetime] = field(default_factory=list)
    last_rewrite: int = 0

    def commit(self, after: dict[tuple[bytes, int], tuple[str, int]], at: datetime) -> None:
        if any(after.get(key) != value for key, value in self.state.items()):
            self.last_rewrite = len(self.states)
        self.state = after
        self.states.append(dict(after))
        self.times.append(at)

    def oldest(self) -> int:
        return min(self.last_rewrite, max(0, len(self.states) - HISTORY))


def rows_of(keys: list[Key], word: str, schema: pa.Schema) -> pa.Table:
    records = [
        {"level": level, "zone": {"code": code, "name": None if place % 2 else "n"}, "said": f"{word}{place}"}
        for place, (level, code) in enumerate(keys)
    ]
    return pa.Table.from_pylist(records, schema=schema)


def content(snapshot: Snapshot) -> dict[tuple[bytes, int], tuple[str, int]]:
    seen: dict[tuple[bytes, int], tuple[str, int]] = {}
    for path in snapshot.files:
        for row in read_data_file(path).to_pylist():
            if snapshot.rows_up_to is None or row["_commit"] <= snapshot.rows_up_to:
                key = same((row["level"], row["zone"]["code"]))
                assert key not in seen, "a key is there twice"
                seen[key] = row["said"], row["_commit"]
    return seen


@contextmanager
def colliding_hashes(hash_bits: int) -> Iterator[None]:
    real = keyed.hashes
    few = np.uint64((1 << hash_bits) - 1)
    with mock.patch.object(keyed, "hashes", lambda keys: real(keys) & few):
        yield


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=st.lists(STEPS, min_size=1, max_size=14),
    hash_bits=st.sampled_from([1, 63]),
    indexed=st.sampled_from([0, 99]),
    # On both sides of the 32 columns whose statistics Delta lists.
    more_columns=st.sampled_from([0, 26, 27, 60]),
)
def test_every_state_that_can_be_asked_for_is_what_the_changes_up_to_it_say(
    steps: list[tuple[str, list[Key]]], hash_bits: int, indexed: int, more_columns: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check_states(LocalFolder(Path(folder)), steps, hash_bits, indexed, more_columns)


@pytest.mark.cluster
@settings(max_examples=examples(10), deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(STEPS, min_size=1, max_size=14))
def test_every_state_of_a_dataset_in_a_bucket_is_what_the_changes_up_to_it_say(
    steps: list[tuple[str, list[Key]]], s3_server: S3Server
) -> None:
    check_states(s3_server.new_folder(), steps, 63, 99, 0)


def check_states(
    folder: StorageFolder, steps: list[tuple[str, list[Key]]], hash_bits: int, indexed: int, more_columns: int
) -> None:
    schema = pa.schema([*SCHEMA, *((f"more{each}", pa.int64()) for each in range(more_columns))])
    with colliding_hashes(hash_bits):
        options: dict[str, Any] = {"history": HISTORY, "indexed_keys_max": indexed}
        table = DatasetTable.create(folder, schema, KEYS, **options)
        model = DatasetModel()
        for place, (step, keys) in enumerate(steps):
            if step == "upkeep":
                upkeep(table, EAGER)
            elif step == "reopen":
                table.close()
                table = DatasetTable.open(folder, schema, KEYS, **options)
            else:
                apply(table, model, step, keys, f"{place}.")
            assert table.number == len(model.states) - 1
            assert table.past.state.rows == len(model.state)
            assert content(table.snapshot()) == model.state
        check_past(table, model)
        upkeep(table, EAGER)
        check_past(table, model)
        table.close()
        check_past(DatasetTable.open(folder, schema, KEYS, **options), model)


def apply(table: DatasetTable, model: DatasetModel, step: str, keys: list[Key], word: str) -> None:
    number = table.number + 1
    rows = rows_of(keys, word, table.schema)
    written = {same(key): (f"{word}{place}", number) for place, key in enumerate(keys)}
    if step in ("insert", "load"):
        if len(written) < len(keys) or any(key in model.state for key in written):
            with pytest.raises(ConflictError):
                table.insert(rows) if step == "insert" else table.load(iter(rows.to_batches(max_chunksize=2)))
            return
        commit = table.insert(rows) if step == "insert" else table.load(iter(rows.to_batches(max_chunksize=2)))
        after = {**model.state, **written}
    elif step == "upsert":
        commit = table.upsert(rows)
        after = {**model.state, **written}
    else:
        commit = table.delete(rows) if step == "delete" else table.delete_all()
        gone = written if step == "delete" else model.state
        after = {key: value for key, value in model.state.items() if key not in gone}
        if after == model.state:
            assert commit.number == number - 1
            assert commit.rows == 0
            return
    assert commit.number == number
    assert not model.times or commit.at > model.times[-1]
    model.commit(after, commit.at)


def check_past(table: DatasetTable, model: DatasetModel) -> None:
    for number, state in enumerate(model.states):
        at = model.times[number - 1] if number else None
        if number >= model.oldest():
            assert content(table.as_of_commit(number)) == state
            if at is not None:
                assert content(table.as_of_time(at)) == state
                assert content(table.as_of_time(at + timedelta(microseconds=1))) == (
                    state
                    if number == len(model.states) - 1 or model.times[number] > at + timedelta(microseconds=1)
                    else model.states[number + 1]
                )
        else:
            with pytest.raises(NotFoundError, match=f"commit {model.oldest()}"):
                table.as_of_commit(number)
            if at is not None:
                with pytest.raises(NotFoundError, match=f"commit {model.oldest()}"):
                    table.as_of_time(at)
    with pytest.raises(NotFoundError):
        table.as_of_commit(len(model.states))
