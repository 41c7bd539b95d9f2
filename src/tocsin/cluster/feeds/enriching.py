"""APPLY FUNCTION: what a function of the catalog makes of a batch of records."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

import pyarrow as pa
from sqlglot import exp

from tocsin.cluster.catalog import CatalogStore
from tocsin.cluster.changes import decoded
from tocsin.cluster.engine import Engine
from tocsin.cluster.entries import FunctionEntry, Ref
from tocsin.cluster.feeds.landing import Enrich, Failed
from tocsin.cluster.scope import BatchScope
from tocsin.cluster.tables import Tables
from tocsin.language.dialect import FieldOf, ObjectOf
from tocsin.pipeline.datasets import layout
from tocsin.rules.model.types import ObjectType


def through(function: Ref, kind: ObjectType, catalog: CatalogStore, tables: Tables, engine: Engine) -> Enrich:
    """Records of this type through the function, which reads datasets and modules as they are when a batch lands."""

    def enrich(rows: pa.Table) -> Sequence[Any]:
        known, now = catalog.catalog, datetime.now(UTC)
        scope = BatchScope(known, tables, engine, function.dataverse, now, rows, kind)
        try:
            found = known.find(function)
            if isinstance(found, FunctionEntry) and found.language == "PYTHON":
                return _called(found, scope, engine)
            return _translated(function.name.rpartition("@")[0], scope, engine)
        finally:
            scope.close()

    return enrich


def _translated(name: str, scope: BatchScope, engine: Engine) -> Sequence[Any]:
    called = exp.Anonymous(this=name, expressions=[exp.column("record", table="batch")])
    # What the engine makes of them comes in any order: each brings its place.
    fields = {"place": exp.column("place", table="batch"), "made": called}
    translated = scope.translated_batch(
        ObjectOf(expressions=[FieldOf(this=exp.Literal.string(key), expression=value) for key, value in fields.items()])
    )
    found = decoded(engine.rows(translated.sql), translated)
    return [one.get("made") for one in sorted(found, key=itemgetter("place"))]


def _called(function: FunctionEntry, scope: BatchScope, engine: Engine) -> Sequence[Any]:
    """A function in Python says by itself on which records it fails: nothing has to be tried again to find them."""
    decode = layout.decoder(function.returns)
    rows = engine.rows(scope.called_batch(function)).sort_by("place")
    made = rows.column("made").to_pylist()
    return [decode(one["value"]) if one["failed"] is None else Failed(one["failed"]) for one in made]
