"""Names and entries come back from their JSON as they were."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.emergency_entries import EVERYTHING, E, report
from tocsin.cluster.catalog.entries import CatalogEntry, FunctionEntry
from tocsin.cluster.catalog.entry_json import (
    TYPE_DEPTH_LIMIT,
    entry_from_json,
    entry_to_json,
    type_from_json,
    type_to_json,
)
from tocsin.cluster.catalog.refs import Ref, index_ref, join_names, split_names
from tocsin.rules.model.types import ANY, PRIMITIVES, STRING, ArrayType, Field, MultisetType, ObjectType, Type
from tocsin.store.cluster.interface import CatalogRow
from tocsin.wire.errors import LimitError, StoreError


@given(st.lists(st.text(), min_size=1, max_size=4))
def test_qualified_names_never_collide(names: list[str]) -> None:
    assert split_names(join_names(*names)) == tuple(names)


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b", "`a", "a`b`", "`a`b"])
def test_what_is_no_qualified_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a qualified name"):
        split_names(text)


def test_an_index_with_dots_in_its_name_is_not_taken_for_another() -> None:
    assert index_ref(E, "a.b", "c") != index_ref(E, "a", "b.c")
    assert index_ref(E, "a", "b") == Ref("index", E, "a.b")


def types() -> st.SearchStrategy[Type]:
    simple: st.SearchStrategy[Type] = st.sampled_from([ANY, *PRIMITIVES.values()])

    def nested(inner: st.SearchStrategy[Type]) -> st.SearchStrategy[Type]:
        field = st.builds(Field, st.text(), inner, st.booleans())
        objects = st.builds(
            ObjectType,
            st.lists(field, max_size=4).map(tuple),
            st.booleans(),
            st.none() | st.sampled_from(["Place", "`odd.verse`.Place"]),
        )
        return st.builds(ArrayType, inner, st.booleans()) | st.builds(MultisetType, inner, st.booleans()) | objects

    return st.recursive(simple, nested, max_leaves=12)


@given(types())
def test_every_type_comes_back_from_json_with_its_names(type_: Type) -> None:
    back = type_from_json(type_to_json(type_))
    assert back == type_
    assert repr(back) == repr(type_), "equality does not look at names"


def test_a_type_nested_too_deeply_is_refused() -> None:
    type_: Type = STRING
    for _ in range(TYPE_DEPTH_LIMIT + 1):
        type_ = ArrayType(type_)
    with pytest.raises(LimitError, match="too deeply"):
        type_to_json(type_)


@pytest.mark.parametrize("entry", EVERYTHING)
def test_every_entry_comes_back_from_json(entry: CatalogEntry) -> None:
    row = CatalogRow(entry.ref.kind, entry.ref.dataverse, entry.ref.name, entry_to_json(entry), 1)
    assert entry_from_json(row) == entry


@pytest.mark.parametrize("returns", [ANY, ArrayType(report.type, item_optional=True)])
def test_a_function_in_python_comes_back_from_json(returns: Type) -> None:
    entry = FunctionEntry(E, "coded", ("r",), "m:f", (report.ref,), "PYTHON", returns, optional=False)
    assert entry_from_json(CatalogRow("function", E, "coded@1", entry_to_json(entry), 1)) == entry


@pytest.mark.parametrize(
    "row",
    [
        CatalogRow("rumour", E, "c", {}, 1),
        CatalogRow("channel", E, "c", {}, 1),
        CatalogRow("procedure", E, "p@0", {"procedure_id": "p", "parameters": [], "body": "1", "period": "soon"}, 1),
        CatalogRow("type", E, "T", {}, 1),
        CatalogRow("type", E, "T", {"type": "bigint", "text": ""}, 1),
        CatalogRow("type", E, "T", {"type": {"what": 1}, "text": ""}, 1),
        CatalogRow("index", E, "no dataset", {"fields": [], "kind": "BTREE"}, 1),
    ],
)
def test_a_row_that_cannot_be_read_is_said_to_be_damaged(row: CatalogRow) -> None:
    with pytest.raises(StoreError, match="the catalog"):
        entry_from_json(row)
