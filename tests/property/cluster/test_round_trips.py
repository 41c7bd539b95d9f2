"""Records of every type go through every statement that takes them, and come back as they were."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import Phase, given, note, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.in_process_cluster import LocalCluster
from tests.support.literals import declaration, literal, name
from tests.support.strategies import names, object_types, same, typed_records, types, values_of
from tocsin.rules.model.json_form import plain
from tocsin.rules.model.types import BIGINT, STRING, Field, ObjectType, Type

_NUMBERS = count()
# Each example costs some seconds of Spark: a failing one is shown as it was found, not made smaller for minutes.
EXAMPLES = settings(max_examples=examples(8), phases=(Phase.explicit, Phase.reuse, Phase.generate), print_blob=True)


def _keyed(kind: ObjectType, *keys: Field) -> ObjectType:
    """The type with these fields before its own."""
    taken = {key.name.lower() for key in keys}
    return ObjectType((*keys, *(field for field in kind.fields if field.name.lower() not in taken)), kind.open)


_ID = Field("id", BIGINT)
_PART = Field("part", ObjectType((Field("a", STRING), Field("b", BIGINT)), open=False))


def _numbered(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**record, "id": i} for i, record in enumerate(records)]


def keyed_records() -> st.SearchStrategy[tuple[ObjectType, list[dict[str, Any]]]]:
    """A type whose key is `id`, and records of it numbered from 0."""
    kinds = object_types().map(lambda kind: _keyed(kind, _ID))
    return typed_records(kinds).map(lambda made: (made[0], _numbered(made[1])))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("loaded")


def assert_same(found: list[Any], expected: list[dict[str, Any]], key: Any = lambda row: row["id"]) -> None:
    wanted = [plain(record) for record in expected]
    assert len(found) == len(wanted)
    for item, other in zip(sorted(found, key=key), sorted(wanted, key=key), strict=True):
        assert same(_through_json(item), _through_json(other)), f"{item}\nis not\n{other}"


def _through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


@pytest.fixture(scope="module")
def dataset(cluster: LocalCluster) -> Iterator[Any]:
    """Makes a dataset of a type; gives the words that every further script begins with, and its name."""
    dataverse = f"trips{uuid4().hex}"
    cluster.run(f"CREATE DATAVERSE {dataverse}")

    def made(kind: ObjectType, keys: str = "id") -> tuple[str, str]:
        number = next(_NUMBERS)
        cluster.run(
            f"USE {dataverse}; CREATE TYPE T{number} AS {declaration(kind)};"
            f"CREATE DATASET D{number}(T{number}) PRIMARY KEY {keys}"
        )
        return f"USE {dataverse};", f"D{number}"

    yield made
    cluster.run(f"DROP DATAVERSE {dataverse}")


@EXAMPLES
@given(made=keyed_records())
def test_records_written_in_a_script_come_back(cluster: LocalCluster, dataset: Any, made: Any) -> None:
    kind, records = made
    use, where = dataset(kind)
    for record in records[:1]:
        cluster.run(f"{use} INSERT INTO {where} {literal(record)}")
    cluster.run(f"{use} UPSERT INTO {where} ({literal(records)})")
    assert_same(cluster.rows(f"{use} SELECT VALUE d FROM {where} d"), records)
    assert_same(cluster.rows(f"{use} SELECT * FROM {where}"), records)
    assert_same(cluster.rows(f"{use} SELECT VALUE x.d FROM (SELECT d AS d FROM {where} d) x"), records)


@EXAMPLES
@given(made=keyed_records())
def test_records_copied_from_dataset_to_dataset_stay_as_they_are(
    cluster: LocalCluster, dataset: Any, made: Any
) -> None:
    kind, records = made
    use, where = dataset(kind)
    _, other = dataset(kind)
    cluster.run(f"{use} INSERT INTO {where} {literal(records)}; INSERT INTO {other} (SELECT VALUE d FROM {where} d)")
    assert_same(cluster.rows(f"{use} SELECT VALUE d FROM {other} d"), records)
    cluster.run(f"{use} UPSERT INTO {other} (SELECT * FROM {where})")
    assert_same(cluster.rows(f"{use} SELECT VALUE d FROM {other} d"), records)


@EXAMPLES
@given(made=keyed_records())
def test_every_field_can_be_asked_for_by_name(cluster: LocalCluster, dataset: Any, made: Any) -> None:
    kind, records = made
    use, where = dataset(kind)
    cluster.run(f"{use} INSERT INTO {where} {literal(records)}")
    fields = sorted({field for record in records for field in record} - {"id"})
    askable = [field for field in fields if not ('"' in field and "'" in field) and field != ""]
    note(f"{declaration(kind)} {literal(records)}")
    columns = "".join(f", d.{name(field)} AS f{i}" for i, field in enumerate(askable))
    found = cluster.rows(f"{use} SELECT d.id AS id{columns} FROM {where} d")
    wanted = [
        {"id": record["id"], **{f"f{i}": record[field] for i, field in enumerate(askable) if field in record}}
        for record in records
    ]
    assert_same(found, wanted)


@EXAMPLES
@given(kind=types(any_type=False), data=st.data())
def test_a_value_can_be_written_asked_for_and_made_part_of_others(
    cluster: LocalCluster, dataset: Any, kind: Type, data: st.DataObject
) -> None:
    value = data.draw(values_of(kind))
    holder = ObjectType((_ID, Field("v", kind)), open=data.draw(st.booleans()))
    use, where = dataset(holder)
    cluster.run(f"{use} INSERT INTO {where} {literal({'id': 1, 'v': value})}")
    (row,) = cluster.rows(
        f"{use} SELECT d.v AS v, [d.v, d.v] AS twice, {{'o': d.v, 'n': null}} AS o, [d.v, 'x'] AS mixed,"
        f" {literal(value)} AS c"
        f" FROM {where} d"
    )
    one = plain(value)
    assert same(
        _through_json(row),
        _through_json({"v": one, "twice": [one, one], "o": {"o": one, "n": None}, "mixed": [one, "x"], "c": one}),
    )


@EXAMPLES
@given(made=keyed_records(), data=st.data())
def test_delete_takes_those_it_names_and_no_others(
    cluster: LocalCluster, dataset: Any, made: Any, data: st.DataObject
) -> None:
    kind, records = made
    use, where = dataset(kind)
    gone = data.draw(st.sets(st.integers(0, 3), max_size=3))
    cluster.run(f"{use} INSERT INTO {where} {literal(records)}")
    (answer,) = cluster.run(f"{use} DELETE FROM {where} d WHERE d.id IN {literal(sorted(gone))}")[1:]
    assert answer.summary["deleted"] == sum(record["id"] in gone for record in records)
    assert_same(cluster.rows(f"{use} SELECT VALUE d FROM {where} d"), [r for r in records if r["id"] not in gone])


_KEY_VALUES = st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), st.integers(-(2**63), 2**63 - 1))


@EXAMPLES
@given(kind=object_types(), data=st.data())
def test_nested_and_composite_keys_tell_records_apart(
    cluster: LocalCluster, dataset: Any, kind: ObjectType, data: st.DataObject
) -> None:
    kind = _keyed(kind, _PART, _ID)
    use, where = dataset(kind, "part.a, id, part.b")
    keys = data.draw(st.lists(_KEY_VALUES, max_size=3))
    written: dict[Any, dict[str, Any]] = {}
    for i, (a, b) in enumerate(keys):
        record = {**data.draw(values_of(kind)), "part": {"a": a, "b": b}, "id": i % 2}
        cluster.run(f"{use} UPSERT INTO {where} {literal(record)}")
        written[a, b, i % 2] = record

    def key(row: Any) -> Any:
        return row["part"]["a"], row["part"]["b"], row["id"]

    assert_same(cluster.rows(f"{use} SELECT VALUE d FROM {where} d"), list(written.values()), key)
    for (a, b, i), record in written.items():
        found = cluster.rows(
            f"{use} SELECT VALUE d FROM {where} d WHERE d.part.a = {literal(a)} AND d.part.b = {b} AND d.id = {i}"
        )
        assert_same(found, [record], key)


@EXAMPLES
@given(
    made=typed_records(
        object_types().map(lambda kind: _keyed(kind, _ID)), undeclared=st.none() | st.integers(0, 9) | names()
    )
)
def test_records_loaded_from_json_come_back(cluster: LocalCluster, dataset: Any, folder: Path, made: Any) -> None:
    kind, records = made[0], _numbered(made[1])
    use, where = dataset(kind)
    file = folder / f"{where}.json"
    file.write_text("".join(json.dumps(plain(record)) + "\n" for record in records), encoding="utf-8")
    cluster.run(f'{use} LOAD DATASET {where} USING localfs (("path"={literal(str(file))}), ("format"="json"))')
    assert_same(cluster.rows(f"{use} SELECT VALUE d FROM {where} d"), records)
