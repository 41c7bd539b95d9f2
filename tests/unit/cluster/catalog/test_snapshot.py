"""A catalog is a value: what uses what, what may go, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.support.emergency_entries import (
    EVERYTHING,
    PLACE,
    E,
    by_place,
    emergency,
    near,
    near_3,
    place,
    report,
    reports,
    verse,
)
from tocsin.cluster.catalog.catalog import DEFAULT, Catalog
from tocsin.cluster.catalog.entries import CatalogEntry, DataverseEntry, FunctionEntry, IndexEntry, TypeEntry
from tocsin.cluster.catalog.refs import dataset_ref, dataverse_ref, function_ref, join_names, type_ref
from tocsin.rules.model.types import ArrayType, Field, MultisetType, ObjectType, Type
from tocsin.wire.errors import ConflictError, InputError, NotFoundError


def test_default_and_metadata_are_always_there() -> None:
    assert [entry.name for entry in Catalog.empty().dataverses] == ["Metadata", "Default"]
    assert Catalog.empty().dataverse(DEFAULT) == DataverseEntry("Default")


@pytest.mark.parametrize("name", ["Default", "Metadata"])
def test_a_built_in_dataverse_is_neither_made_nor_dropped(name: str) -> None:
    with pytest.raises(ConflictError, match="exists already"):
        Catalog.empty().with_(DataverseEntry(name))
    with pytest.raises(ConflictError, match="cannot be dropped"):
        Catalog.empty().without(dataverse_ref(name))


def test_nothing_can_be_put_into_metadata() -> None:
    with pytest.raises(ConflictError, match="reserved"):
        Catalog.empty().with_(dataclasses.replace(place, dataverse="Metadata"))


def test_whoever_holds_a_catalog_sees_no_change() -> None:
    before = emergency()
    entries = dict(before.entries)
    after = before.without(near_3.ref).without(near.ref).without(reports.ref)
    assert dict(before.entries) == entries
    assert after.find(reports.ref) is None
    with pytest.raises(TypeError):
        before.entries[reports.ref] = reports  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.entries = {}  # type: ignore[misc]


def test_every_kind_is_found_by_its_names() -> None:
    catalog = emergency()
    assert catalog.dataverse(E) == verse
    assert catalog.type_(E, "Place") == place
    assert catalog.dataset(E, "Reports") == reports
    assert catalog.index(E, "Reports", "byPlace") == by_place
    assert catalog.function(E, "near", 2) == near
    assert catalog.function(E, "near", 3) == near_3
    assert catalog.functions_named(E, "near") == [near, near_3]
    assert catalog.indexes_of(E, "Reports") == [by_place]
    assert catalog.types == (place, report)
    assert catalog.datasets == (reports,)
    assert catalog.indexes == (by_place,)
    assert catalog.functions == (near, near_3)


def test_names_are_case_sensitive() -> None:
    catalog = emergency().with_(dataclasses.replace(reports, name="reports", folder="f2"))
    assert catalog.dataset(E, "reports").folder == "f2"
    assert catalog.dataset(E, "Reports").folder == "f1"


@pytest.mark.parametrize(
    ("ask", "message", "hint"),
    [
        (lambda c: c.dataset(E, "reports"), "there is no dataset Emergency.reports", "did you mean Reports?"),
        (lambda c: c.dataset(E, "Report"), "there is no dataset Emergency.Report", "did you mean Reports?"),
        (lambda c: c.dataset("Default", "Reports"), "no dataset Default.Reports", "did you mean Emergency.Reports?"),
        (lambda c: c.dataset("Emergancy", "Reports"), "no dataverse Emergancy", "did you mean Emergency?"),
        (lambda c: c.dataset(E, "Shelters"), "there is no dataset Emergency.Shelters", None),
        (lambda c: c.type_(E, "Plce"), "there is no type Emergency.Plce", "did you mean Place?"),
        (lambda c: c.function(E, "near", 1), "function Emergency.near@1", "it takes 2 or 3 arguments, not 1"),
        (lambda c: c.function(E, "nar", 2), "function Emergency.nar@2", "did you mean near?"),
        (lambda c: c.index(E, "Reports", "byplace"), "no index Emergency.Reports.byplace", "did you mean byPlace?"),
        (lambda c: c.index(E, "Report", "byPlace"), "there is no dataset Emergency.Report", "did you mean Reports?"),
        (lambda c: c.without(dataverse_ref("emergency")), "no dataverse emergency", "did you mean Emergency?"),
        (lambda c: c.without(dataset_ref(E, "odd name")), "there is no dataset Emergency.`odd name`", None),
    ],
)
def test_a_miss_names_what_is_missing_and_what_may_be_meant(ask: Any, message: str, hint: str | None) -> None:
    with pytest.raises(NotFoundError) as caught:
        ask(emergency())
    assert message in caught.value.message
    assert caught.value.hint == hint


def test_users_are_known_through_fields_types_and_functions() -> None:
    catalog = emergency()
    assert catalog.users_of(place.ref) == [report.ref]
    assert catalog.users_of(report.ref) == [reports.ref, near_3.ref]
    assert catalog.users_of(reports.ref) == [near.ref]
    assert catalog.users_of(near.ref) == [near_3.ref]
    assert catalog.users_of(near_3.ref) == []
    assert catalog.users_of(by_place.ref) == []
    assert catalog.users_of(verse.ref) == []


@pytest.mark.parametrize(
    "nested", [PLACE, ArrayType(PLACE), MultisetType(ArrayType(PLACE)), ObjectType((Field("x", ArrayType(PLACE)),))]
)
def test_a_type_uses_the_named_types_at_any_depth(nested: Type) -> None:
    assert TypeEntry(E, "T", ObjectType((Field("f", nested, True),), name="T"), "").uses == (place.ref,)


def test_a_type_of_another_dataverse_is_named_with_it() -> None:
    other = ObjectType((), name=join_names("Odd.verse", "Place"))
    assert TypeEntry(E, "T", ObjectType((Field("f", other),)), "").uses == (type_ref("Odd.verse", "Place"),)


def test_what_is_used_is_not_dropped_and_the_user_is_named() -> None:
    catalog = emergency()
    for ref, user in [
        (place.ref, "type Emergency.Report"),
        (report.ref, "dataset Emergency.Reports, function Emergency.near@3"),
        (reports.ref, "function Emergency.near@2"),
        (near.ref, "function Emergency.near@3"),
    ]:
        with pytest.raises(ConflictError, match="cannot be dropped") as caught:
            catalog.without(ref)
        assert caught.value.message.endswith(f"it is used by {user}")


def test_many_users_are_counted_rather_than_listed() -> None:
    catalog = emergency()
    for number in range(10):
        catalog = catalog.with_(FunctionEntry(E, f"f{number}", (), "", (reports.ref,)))
    with pytest.raises(ConflictError, match=r"near@2, function Emergency\.f0@0, function Emergency\.f1@0 and 8 more"):
        catalog.without(reports.ref)


def test_a_dataset_takes_its_indexes_with_it() -> None:
    catalog = emergency().without(near_3.ref).without(near.ref)
    assert catalog.entries_with(reports.ref) == [reports, by_place]
    after = catalog.without(reports.ref)
    assert after.indexes == ()
    assert after.datasets == ()


def test_dropping_a_dataverse_drops_all_in_it_though_they_use_each_other() -> None:
    assert emergency().without(verse.ref) == Catalog.empty()


def test_a_dataverse_used_from_outside_is_not_dropped() -> None:
    catalog = emergency().with_(FunctionEntry(DEFAULT, "f", (), "", (near.ref,)))
    assert catalog.users_of(verse.ref) == [function_ref(DEFAULT, "f", 0)]
    with pytest.raises(ConflictError, match=r"something in it is used by function Default\.f@0"):
        catalog.without(verse.ref)


@pytest.mark.parametrize("entry", EVERYTHING)
def test_a_taken_name_is_refused(entry: CatalogEntry) -> None:
    with pytest.raises(ConflictError, match="exists already"):
        emergency().with_(entry)


@pytest.mark.parametrize(
    ("entry", "missing"),
    [
        (dataclasses.replace(place, dataverse="Nowhere"), "dataverse Nowhere"),
        (
            dataclasses.replace(report, name="R2", type=ObjectType((Field("f", ObjectType(name="X")),))),
            "type Emergency.X",
        ),
        (dataclasses.replace(reports, name="R2", type_name="Default.Report"), "type Default.Report"),
        (IndexEntry(E, "Nothing", "i", (("a",),), "BTREE"), "dataset Emergency.Nothing"),
        (FunctionEntry(E, "g", (), "", (function_ref(E, "near", 9),)), "function Emergency.near@9"),
    ],
)
def test_what_uses_something_that_is_not_there_is_refused(entry: CatalogEntry, missing: str) -> None:
    with pytest.raises(NotFoundError, match=missing):
        emergency().with_(entry)


def test_a_function_may_use_what_metadata_describes() -> None:
    catalog = emergency().with_(FunctionEntry(E, "count_all", (), "", (dataset_ref("Metadata", "Dataset"),)))
    assert catalog.function(E, "count_all", 0).arity == 0


def test_a_replaced_function_keeps_its_place_and_its_users() -> None:
    changed = dataclasses.replace(near, body="SELECT 2", uses=())
    catalog = emergency().with_(changed, replace=True)
    assert catalog.functions == (changed, near_3)
    assert catalog.without(by_place.ref).without(near_3.ref).users_of(reports.ref) == []


def test_a_type_that_is_used_is_not_replaced() -> None:
    with pytest.raises(ConflictError, match=r"used by type Emergency\.Report"):
        emergency().with_(dataclasses.replace(place, text="new"), replace=True)


def test_a_function_never_comes_to_use_itself() -> None:
    with pytest.raises(ConflictError, match="would use itself"):
        emergency().with_(dataclasses.replace(near, uses=(near_3.ref,)), replace=True)
    with pytest.raises(ConflictError, match="would use itself"):
        emergency().with_(FunctionEntry(E, "loop", (), "", (function_ref(E, "loop", 0),)))


@pytest.mark.parametrize("name", ["", "x" * 129, "a\0b", "\ud800"])
def test_a_name_that_cannot_be_kept_is_refused(name: str) -> None:
    for entry in (DataverseEntry(name), dataclasses.replace(place, name=name), dataclasses.replace(near, name=name)):
        with pytest.raises(InputError):
            emergency().with_(entry)
