"""What a feed's log holds of a request comes out as it went in."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.support.strategies import same, typed_records
from tocsin.cluster.feeds.batches import FEW, pack_batch, read_refused, rows_in
from tocsin.pipeline.datasets import layout
from tocsin.pipeline.sources.decoder import DecodedRecord
from tocsin.rules.model.types import BIGINT, Field, ObjectType

KIND = ObjectType((Field("id", BIGINT),), True)


@given(typed_records(), st.booleans())
def test_accepted_records_come_out_as_they_went_in(
    drawn: tuple[ObjectType, list[dict[str, Any]]], are_many: bool
) -> None:
    kind, records = drawn
    records = records * (FEW + 1) if are_many else records
    payload = pack_batch([DecodedRecord(index, record) for index, record in enumerate(records)], kind)
    rows, counts = rows_in([payload], kind)
    assert same(layout.from_arrow(rows, kind), records)
    assert counts == [len(records)]
    assert not read_refused(payload)


@given(typed_records())
def test_few_records_land_as_the_same_columns_as_many(drawn: tuple[ObjectType, list[dict[str, Any]]]) -> None:
    kind, records = drawn
    few = [pack_batch([DecodedRecord(0, record)], kind) for record in records]
    rows, _ = rows_in(few or [pack_batch([], kind)], kind)
    expected = layout.to_arrow(records, kind)
    assert rows.schema.equals(expected.schema)
    assert same(rows.to_pylist(), expected.to_pylist())


def test_refused_records_keep_their_place_their_field_their_reason_and_their_text() -> None:
    decoded = [
        DecodedRecord(0, None, "id", "expected a bigint", b'{"id": "x"}'),
        DecodedRecord(1, {"id": 1}),
        DecodedRecord(2, None, "", "not JSON", b"\xff{"),
    ]
    payload = pack_batch(decoded, KIND)
    assert layout.from_arrow(rows_in([payload], KIND)[0], KIND) == [{"id": 1}]
    assert read_refused(payload) == [
        {"index": 0, "field": "id", "reason": "expected a bigint", "record": '{"id": "x"}'},
        {"index": 2, "field": "", "reason": "not JSON", "record": "\ufffd{"},
    ]


def test_a_request_of_which_nothing_was_accepted_has_no_rows_and_the_feeds_columns() -> None:
    rows, counts = rows_in([pack_batch([DecodedRecord(0, None, "id", "is missing", b"{}")], KIND)], KIND)
    assert (rows.num_rows, counts) == (0, [0])
    assert rows.schema == layout.record_schema(KIND)


@given(st.lists(st.sampled_from([0, 1, 2, FEW, FEW + 1]), min_size=1, max_size=6))
def test_small_and_large_requests_keep_their_order(sizes: list[int]) -> None:
    numbers = iter(range(1_000))
    requests = [[{"id": next(numbers), "more": [size]} for _ in range(size)] for size in sizes]
    payloads = [
        pack_batch([DecodedRecord(at, record) for at, record in enumerate(request)], KIND) for request in requests
    ]
    rows, counts = rows_in(payloads, KIND)
    assert layout.from_arrow(rows, KIND) == [record for request in requests for record in request]
    assert counts == sizes
