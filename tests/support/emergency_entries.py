"""The entries of an application for emergencies, each of which uses others."""

from __future__ import annotations

from tocsin.cluster.catalog.catalog import Catalog
from tocsin.cluster.catalog.entries import (
    CatalogEntry,
    DatasetEntry,
    DataverseEntry,
    FunctionEntry,
    IndexEntry,
    TypeEntry,
)
from tocsin.cluster.catalog.refs import dataset_ref, type_ref
from tocsin.rules.model.types import BIGINT, DATETIME, POINT, STRING, ArrayType, Field, ObjectType

E = "Emergency"

PLACE = ObjectType((Field("at", POINT),), open=False, name="Place")
REPORT = ObjectType(
    (
        Field("id", BIGINT),
        Field("where", PLACE),
        Field("notes", ArrayType(STRING, True), True),
        Field("when", DATETIME),
    ),
    name="Report",
)

verse = DataverseEntry(E)
place = TypeEntry(E, "Place", PLACE, "CREATE TYPE Place AS CLOSED { at: point }")
report = TypeEntry(E, "Report", REPORT, "CREATE TYPE Report AS { … }")
reports = DatasetEntry(
    E, "Reports", "Emergency.Report", REPORT, (("id",), ("where", "at")), False, True, "f1", 1000, 60.5
)
by_place = IndexEntry(E, "Reports", "byPlace", (("where", "at"),), "RTREE")
near = FunctionEntry(E, "near", ("p", "r"), "SELECT …", (dataset_ref(E, "Reports"),))
near_3 = FunctionEntry(E, "near", ("p", "r", "n"), "SELECT …", (near.ref, type_ref(E, "Report")))
EVERYTHING: list[CatalogEntry] = [verse, place, report, reports, by_place, near, near_3]


def emergency() -> Catalog:
    catalog = Catalog.empty()
    for entry in EVERYTHING:
        catalog = catalog.with_(entry)
    return catalog
