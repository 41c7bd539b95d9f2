"""What a feed's log holds of a request comes out as it went in."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given

from tests.strategies import same, typed_records
from tocsin.cluster.feeds.batches import packed, unpacked
from tocsin.pipeline.datasets import layout
from tocsin.pipeline.readers.decoding import Decoded
from tocsin.rules.model.types import BIGINT, Field, ObjectType

KIND = ObjectType((Field("id", BIGINT),), True)


@given(typed_records())
def test_accepted_records_come_out_as_they_went_in(drawn: tuple[ObjectType, list[dict[str, Any]]]) -> None:
    kind, records = drawn
    batch = unpacked(packed([Decoded(index, record) for index, record in enumerate(records)], kind))
    assert same(layout.from_arrow(batch.rows, kind), records)
    assert batch.refused == ()


def test_refused_records_keep_their_place_their_field_their_reason_and_their_text() -> None:
    decoded = [
        Decoded(0, None, "id", "expected a bigint", b'{"id": "x"}'),
        Decoded(1, {"id": 1}),
        Decoded(2, None, "", "not JSON", b"\xff{"),
    ]
    batch = unpacked(packed(decoded, KIND))
    assert layout.from_arrow(batch.rows, KIND) == [{"id": 1}]
    assert batch.refused == (
        {"index": 0, "field": "id", "reason": "expected a bigint", "record": '{"id": "x"}'},
        {"index": 2, "field": "", "reason": "not JSON", "record": "\ufffd{"},
    )


def test_a_request_of_which_nothing_was_accepted_has_no_rows_and_the_feeds_columns() -> None:
    batch = unpacked(packed([Decoded(0, None, "id", "is missing", b"{}")], KIND))
    assert batch.rows.num_rows == 0
    assert batch.rows.schema == layout.record_schema(KIND)


def test_rows_of_several_requests_join() -> None:
    tables = [unpacked(packed([Decoded(0, {"id": i, "more": [i]})], KIND)).rows for i in range(3)]
    assert layout.from_arrow(pa.concat_tables(tables), KIND) == [{"id": i, "more": [i]} for i in range(3)]
