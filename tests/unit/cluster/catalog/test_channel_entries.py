"""Brokers, channels and procedures in the catalog: who uses what, and which names are taken."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tocsin.cluster.catalog.catalog import Catalog
from tocsin.cluster.catalog.entries import (
    BrokerEntry,
    CatalogEntry,
    ChannelEntry,
    DatasetEntry,
    DataverseEntry,
    FunctionEntry,
    ProcedureEntry,
    TypeEntry,
)
from tocsin.cluster.catalog.entry_json import entry_from_json, entry_to_json
from tocsin.cluster.catalog.metadata import DATASETS
from tocsin.cluster.catalog.refs import dataset_ref, function_ref
from tocsin.pipeline.datasets import layout
from tocsin.rules.model.types import ANY, BIGINT, POINT, STRING, ArrayType, Field, ObjectType
from tocsin.rules.model.values import Duration
from tocsin.store.cluster.interface import CatalogRow
from tocsin.wire.errors import ConflictError, NotFoundError

E = "Emergency"
AT = datetime(2026, 11, 15, 8, 30, 0, 250, tzinfo=UTC)
REPORT = ObjectType((Field("id", BIGINT),), name="Report")

verse = DataverseEntry(E)
report = TypeEntry(E, "Report", REPORT, "CREATE TYPE …")
reports = DatasetEntry(E, "Reports", "Emergency.Report", REPORT, (("id",),), False, True, "f1", 1000, None)
near = FunctionEntry(E, "near", ("p",), "SELECT …", (reports.ref,))
broker = BrokerEntry(E, "Downtown", "http://broker.example:1/x")
by_function = ChannelEntry(
    E, "NearMe", channel_id=7, continuous=False, push=True, function=near.ref, parameters=("p",), types=(POINT,),
    body=None, period=Duration(months=1, micros=500_000), anchor=AT, retention_s=60.5, retention_bytes=10**12,
    uses=(near.ref,),
)  # fmt: skip
by_body = ChannelEntry(
    E, "All", channel_id=8, continuous=True, push=False, function=None, parameters=("a", "b"),
    types=(ANY, ArrayType(STRING)), body="SELECT VALUE r FROM Reports r", period=None, anchor=AT, retention_s=None,
    retention_bytes=None, uses=(reports.ref,),
)  # fmt: skip
forget = ProcedureEntry(E, "forget", "f", (), "DELETE FROM Reports", Duration(micros=10**9), AT, (reports.ref,))
add = ProcedureEntry(E, "add", "a", ("x", "y"), "INSERT INTO Reports {}", None, AT, (reports.ref,))
EVERYTHING: list[CatalogEntry] = [verse, report, reports, near, broker, by_function, by_body, forget, add]


def emergency() -> Catalog:
    catalog = Catalog.empty()
    for entry in EVERYTHING:
        catalog = catalog.with_(entry)
    return catalog


@pytest.mark.parametrize("entry", EVERYTHING)
def test_every_entry_comes_back_from_json(entry: CatalogEntry) -> None:
    row = CatalogRow(entry.ref.kind, entry.ref.dataverse, entry.ref.name, entry_to_json(entry), 1)
    assert entry_from_json(row) == entry


def test_each_is_found_by_its_names() -> None:
    catalog = emergency()
    assert catalog.broker(E, "Downtown") == broker
    assert catalog.channel(E, "NearMe") == by_function
    assert catalog.procedure(E, "add", 2) == add
    assert (catalog.brokers, catalog.channels, catalog.procedures) == ((broker,), (by_function, by_body), (forget, add))
    with pytest.raises(NotFoundError, match=r"no channel Emergency\.nearme") as missed:
        catalog.channel(E, "nearme")
    assert missed.value.hint == "did you mean NearMe?"
    with pytest.raises(NotFoundError, match=r"no procedure Emergency\.add@1") as missed:
        catalog.procedure(E, "add", 1)
    assert missed.value.hint == "it takes 2 arguments, not 1"


def test_what_a_channel_or_a_procedure_uses_is_not_dropped_and_the_user_is_named() -> None:
    catalog = emergency()
    with pytest.raises(ConflictError, match=r"used by channel Emergency\.NearMe$"):
        catalog.without(near.ref)
    catalog = catalog.without(by_function.ref).without(near.ref)
    users = r"used by channel Emergency\.All, procedure Emergency\.forget@0, procedure Emergency\.add@2$"
    with pytest.raises(ConflictError, match=users):
        catalog.without(reports.ref)
    for gone in (by_body, forget, add, reports):
        catalog = catalog.without(gone.ref)
    assert catalog.datasets == ()


def test_dropping_a_dataverse_drops_them() -> None:
    assert emergency().without(verse.ref) == Catalog.empty()
    outside = replace(by_body, dataverse="Default", uses=(near.ref,))
    with pytest.raises(ConflictError, match=r"something in it is used by channel Default\.All"):
        emergency().with_(outside).without(verse.ref)


@pytest.mark.parametrize("name", ["AllSubscriptions", "AllResults"])
def test_a_channel_and_a_dataset_never_share_a_name(name: str) -> None:
    dataset = replace(reports, name=name, folder="f2")
    with pytest.raises(ConflictError, match=r"channel Emergency\.All is seen under that name"):
        emergency().with_(dataset)
    without = emergency().without(by_body.ref).with_(dataset)
    with pytest.raises(ConflictError, match=f"it would be seen as dataset Emergency.{name}"):
        without.with_(by_body)
    # In another dataverse, or in another case, it is another name.
    assert emergency().with_(replace(dataset, dataverse="Default")).datasets[1].name == name
    assert emergency().with_(replace(dataset, name=name.lower())).datasets[1].name == name.lower()


def test_a_dataset_may_be_called_results() -> None:
    assert len(emergency().with_(replace(reports, name="Results", folder="f2")).datasets) == 2


def test_whoever_reads_the_results_of_a_channel_uses_the_channel() -> None:
    reader = FunctionEntry(E, "seen", (), "SELECT …", (dataset_ref(E, "AllResults"),))
    catalog = emergency().with_(reader)
    assert catalog.users_of(by_body.ref) == [function_ref(E, "seen", 0)]
    with pytest.raises(ConflictError, match=r"channel Emergency\.All cannot be dropped: it is used by function"):
        catalog.without(by_body.ref)
    with pytest.raises(NotFoundError, match="there is no such dataset"):
        emergency().with_(FunctionEntry(E, "seen", (), "SELECT …", (dataset_ref(E, "NoneResults"),)))


def test_metadata_lists_them_with_the_names_of_the_original() -> None:
    catalog = emergency()
    rows = {name: made.rows(catalog, Path("/data")) for name, made in DATASETS.items() if callable(made.rows)}
    assert rows["Broker"] == [
        {
            "DataverseName": E,
            "BrokerName": "Downtown",
            "BrokerEndPoint": "http://broker.example:1/x",
            "BrokerType": "tocsin",
        }
    ]
    first, second = rows["Channel"]
    assert first["Function"] == [E, "near", "1"]
    assert (first["Kind"], first["Push"], first["Duration"]) == ("REPETITIVE", True, "P1MT0.5S")
    assert (first["SubscriptionsDatasetName"], first["ResultsDatasetName"]) == ("NearMeSubscriptions", "NearMeResults")
    assert (second["Kind"], second["Body"], second["ParameterTypes"]) == (
        "CONTINUOUS",
        by_body.body,
        ["any", "[string]"],
    )
    assert second["Duration"] == ""
    own_datasets = [[E, "NearMeResults"], [E, "NearMeSubscriptions"]]
    assert first["Dependencies"] == [own_datasets, [[E, "near", "1"]]]
    fields = ("ProcedureName", "Arity", "Duration", "Type")
    assert [tuple(procedure[field] for field in fields) for procedure in rows["Procedure"]] == [
        ("forget", "0", "PT16M40S", "DELETE"),
        ("add", "2", "", "INSERT"),
    ]
    for name, found in rows.items():
        assert layout.to_arrow(found, DATASETS[name].type).num_rows == len(found)
