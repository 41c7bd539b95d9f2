"""Records of a feed become rows of a dataset: the fast way gives what the slow way gives, and every key is new once."""

from __future__ import annotations

from typing import Any
from unittest import mock
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.strategies import names, object_types, open_values, same, types, values_of
from tocsin.pipeline.datasets import layout
from tocsin.pipeline.landing import rows as fitting
from tocsin.pipeline.landing.rows import FittedRows, KeyPath, RefusedRow, check_rows, fitter, generate
from tocsin.rules.model import types as t
from tocsin.rules.model.types import Field, ObjectType

KEY = "recordId"
FEED = ObjectType((Field("name", t.STRING),), True)
DATASET = ObjectType((Field(KEY, t.UUID), Field("name", t.STRING)), True)


def rows(records: list[dict[str, Any]], kind: ObjectType = FEED) -> pa.Table:
    return layout.to_arrow(records, kind)


def slowly(records: pa.Table, feed: ObjectType, dataset: ObjectType, generated: KeyPath | None) -> FittedRows:
    return check_rows(layout.from_arrow(records, feed), dataset, generated)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[ObjectType, ObjectType, KeyPath | None, list[dict[str, Any]]]:
    """A feed's type, a dataset's that is it or near it, a generated key or none, and records of the feed."""
    feed = draw(object_types())
    declared = {field.name.lower() for field in feed.fields}
    key = draw(names().filter(lambda name: name.lower() not in declared))
    fields = list(feed.fields)
    generated = draw(st.sampled_from((None, (key,))))
    if generated is not None:
        fields.insert(draw(st.integers(0, len(fields))), Field(key, t.UUID))
    if draw(st.booleans()):
        changed = draw(st.sampled_from(("optional", "type", "fewer", "more")))
        place = draw(st.integers(0, max(0, len(feed.fields) - 1)))
        ordinary = [i for i, field in enumerate(fields) if generated is None or field.name != key]
        if changed == "more":
            fields.append(Field(f"{key}x", draw(types()), True))
        elif ordinary:
            at = ordinary[min(place, len(ordinary) - 1)]
            old = fields[at]
            if changed == "fewer":
                del fields[at]
            elif changed == "optional":
                fields[at] = Field(old.name, old.type, not old.optional)
            else:
                fields[at] = Field(old.name, draw(types()), old.optional)
    records: list[dict[str, Any]] = draw(st.lists(values_of(feed), max_size=4))
    brings_key: bool = draw(st.booleans())
    if feed.open and generated is not None and records and brings_key:
        records[0][key] = draw(st.uuids() | open_values())
    return feed, ObjectType(tuple(fields), draw(st.booleans())), generated, records


@given(pairs())
def test_the_fast_way_gives_what_the_slow_way_gives(
    drawn: tuple[ObjectType, ObjectType, KeyPath | None, list[dict[str, Any]]],
) -> None:
    feed, dataset, generated, records = drawn
    came = rows(records, feed)
    fast, slow = fitter(feed, dataset, generated)(came), slowly(came, feed, dataset, generated)
    assert fast.refused == slow.refused
    assert fast.rows.schema == slow.rows.schema == layout.record_schema(dataset)
    assert fast.keys_are_new == slow.keys_are_new
    fast_records, slow_records = (layout.from_arrow(fitted.rows, dataset) for fitted in (fast, slow))
    if generated is not None:
        brought = [generated[0] in record for record in records]
        kept = [had for index, had in enumerate(brought) if index not in {refusal.index for refusal in fast.refused}]
        for had, mine, theirs in zip(kept, fast_records, slow_records, strict=True):
            if not had:
                # Made just now, and so not the same.
                assert mine.pop(generated[0]) != theirs.pop(generated[0])
    assert same(fast_records, slow_records)


def test_rows_of_the_same_columns_are_not_read_one_by_one() -> None:
    with mock.patch.object(fitting, "check_rows", side_effect=AssertionError("the slow way")):
        fitted = fitter(FEED, DATASET, (KEY,))(rows([{"name": "a", "more": 1}, {"name": "b"}]))
    assert fitted.rows.num_rows == 2


@given(st.integers(0, 300))
def test_generated_keys_are_uuids_and_each_is_another(count: int) -> None:
    fitted = fitter(FEED, DATASET, (KEY,))(rows([{"name": "a"}] * count))
    keys = [UUID(key) for key in fitted.rows.column(KEY).to_pylist()]
    assert fitted.keys_are_new
    assert len(set(keys)) == count
    assert {key.version for key in keys} <= {4}
    assert {key.variant for key in keys} <= {"specified in RFC 4122"}


@pytest.mark.parametrize("name", [KEY, "名前", "$key", 'a"b', "naïve"])
def test_a_record_may_bring_its_own_key_as_a_field_the_feed_does_not_declare(name: str) -> None:
    own = uuid4()
    dataset = ObjectType((Field(name, t.UUID), Field("name", t.STRING)), True)
    fitted = fitter(FEED, dataset, (name,))(rows([{"name": "a", name: own}, {"name": "b"}]))
    first, second = layout.from_arrow(fitted.rows, dataset)
    assert first == {"name": "a", name: own}
    assert second[name] != own
    assert not fitted.keys_are_new


def test_a_key_of_the_wrong_type_refuses_its_record_alone() -> None:
    fitted = fitter(FEED, DATASET, (KEY,))(rows([{"name": "a", KEY: 7}, {"name": "b"}]))
    assert [record["name"] for record in layout.from_arrow(fitted.rows, DATASET)] == ["b"]
    assert [(refusal.index, refusal.field) for refusal in fitted.refused] == [(0, KEY)]


def test_what_does_not_fit_a_closed_dataset_is_refused_with_its_place_and_its_field() -> None:
    closed = ObjectType(DATASET.fields, False)
    fitted = fitter(FEED, closed, (KEY,))(rows([{"name": "a"}, {"name": "b", "more": 1}, {"name": "c"}]))
    assert [record["name"] for record in layout.from_arrow(fitted.rows, closed)] == ["a", "c"]
    assert [(refusal.index, refusal.field) for refusal in fitted.refused] == [(1, "more")]


def test_a_value_that_is_no_object_is_refused() -> None:
    assert check_rows([1, {"name": "a"}, [2]], FEED, None).refused == (
        RefusedRow(0, "", "a record is an object"),
        RefusedRow(2, "", "a record is an object"),
    )


def test_a_key_inside_of_an_object_is_generated_there() -> None:
    record: dict[str, Any] = {"name": "a"}
    assert generate(record, ("about", "id"))
    assert isinstance(record["about"]["id"], UUID)
    assert not generate(record, ("about", "id"))
    assert not generate({"about": "text"}, ("about", "id"))
