"""Every query of the corpus answers what plain Python computes for it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from tests.corpus import data
from tests.corpus.entry import Entry
from tests.corpus.queries import CONDITIONS, CONSTANTS, ENTRIES
from tests.support.commands import ROOT
from tests.support.in_process_cluster import LocalCluster
from tocsin.rules.model.json_form import plain
from tocsin.wire.errors import InputError

_AT_ONCE = 20


@pytest.fixture(scope="module")
def corpus(cluster: LocalCluster) -> Iterator[str]:
    name = f"corpus{uuid4().hex}"
    cluster.run(f"CREATE DATAVERSE {name}; USE {name}; {data.script()}")
    yield name
    cluster.run(f"DROP DATAVERSE {name}")


def alike(found: Any, expected: Any) -> bool:
    """Equal in value and kind; doubles to fifteen digits, because sums may be taken in any order."""
    if found.__class__ is not expected.__class__:
        return False
    if isinstance(found, dict):
        return found.keys() == expected.keys() and all(alike(found[name], expected[name]) for name in found)
    if isinstance(found, list):
        return len(found) == len(expected) and all(map(alike, found, expected))
    if isinstance(found, float):
        return math.isclose(found, expected, rel_tol=1e-12, abs_tol=1e-12)
    return bool(found == expected)


def _sorted(rows: list[Any]) -> list[Any]:
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry.text for entry in ENTRIES])
def test_a_query_answers_rightly(cluster: LocalCluster, corpus: str, entry: Entry) -> None:
    text = entry.text.replace("$dataverse", corpus)
    found = cluster.rows(f"USE {corpus}; {text};")
    expected = [plain(row) for row in entry.expected()]
    if not entry.ordered:
        found, expected = _sorted(found), _sorted(expected)
    assert alike(found, expected), f"{found}\nis not\n{expected}"


@pytest.mark.parametrize("start", range(0, len(CONDITIONS), _AT_ONCE))
def test_conditions_are_true_for_those_they_are_true_for(cluster: LocalCluster, corpus: str, start: int) -> None:
    some = CONDITIONS[start : start + _AT_ONCE]
    asked = ", ".join(
        f"CASE WHEN {text} THEN p.id END AS c{i}" for i, (text, _) in enumerate(some) if "SELECT" not in text
    )
    together = cluster.rows(f"USE {corpus}; SELECT {asked} FROM People p")
    wrong = {}
    for i, (text, test) in enumerate(some):
        if "SELECT" in text:
            found = cluster.rows(f"USE {corpus}; SELECT VALUE p.id FROM People p WHERE {text}")
        else:
            found = [row[f"c{i}"] for row in together if row[f"c{i}"] is not None]
        expected = [person["id"] for person in data.PEOPLE if test(person)]
        if sorted(found) != expected:
            wrong[text] = (found, expected)
    assert wrong == {}


@pytest.mark.parametrize("start", range(0, len(CONSTANTS), _AT_ONCE))
def test_expressions_have_their_values(cluster: LocalCluster, start: int) -> None:
    some = CONSTANTS[start : start + _AT_ONCE]
    wrong = {}
    (row,) = cluster.rows("SELECT " + ", ".join(f"{text} AS c{i}" for i, (text, _) in enumerate(some)))
    for i, (text, value) in enumerate(some):
        expected = plain({"c": value})
        found = {"c": row[f"c{i}"]} if f"c{i}" in row else {}
        if not alike(found, expected):
            wrong[text] = (found, expected)
    assert wrong == {}


REFUSED = [
    ("SELECT VALUE array_sort([1], 2, 3)", "array_sort takes 1 argument, got 3"),
    ("SELECT VALUE array_prepend([1], 2)", "takes the array last"),
    ("SELECT VALUE if(1, 'a', 'b')", "if takes a condition first, which is true or false, got bigint"),
    ("SELECT VALUE replace('a', 'b', 'c', 1, 2)", "replace takes 2 to 4 arguments, got 5"),
    ("SELECT VALUE array_sum([9223372036854775807, 1])", "a number is too large: a bigint has 64 bits"),
    ("SELECT VALUE bigint('x')", "'x' is no bigint; try_cast gives NULL for it"),
    ("SELECT VALUE parse_date('x', 'yyyy')", "the text does not match the pattern"),
    ("SELECT VALUE 1 / 0", "division by zero"),
    ("SELECT VALUE date_add(5, 1)", "the first argument must be"),
    ("SELECT VALUE is_arry([1])", "did you mean is_array?"),
    ("SELECT VALUE array_range(0, 2000000)", "at most 1,000,000 items"),
    ("SELECT VALUE p.nothing FROM Zones p", "there is no field nothing"),
    ("SELECT VALUE p.id FROM Peple p", "unknown dataset Peple"),
    ("SELECT VALUE nowhere(1)", "nowhere cannot be called here"),
    ("SELECT VALUE visitsOf(1, 2)", "unknown function"),
    ("SELECT VALUE id FROM People a, Visits b", "id is a field of several variables"),
    ("SELECT p.id, p.id FROM People p", "two columns are called id"),
    ("SELECT VALUE 9223372036854775808", "fits bigint"),
    ("SELECT VALUE t FROM Things VERSION AS OF 99 t", "99"),
    ("SELECT VALUE point('1')", "expected a point"),
    ("SELECT VALUE spatial_area(5)", "spatial_area expects"),
    ("SELECT VALUE p.tags.x FROM People p", "has no field x"),
    ("SELECT VALUE i FROM People p AT i", "a dataset has no order"),
    (
        "SELECT v.place, (SELECT VALUE v.id FROM g) FROM Visits v GROUP BY v.place GROUP AS g",
        "v ranges over rows that were grouped",
    ),
    ("SELECT count(*), (SELECT VALUE v.id FROM Visits v WHERE v.id = p.id) FROM People p", "beside an aggregate"),
    ("SELECT VALUE is_new(t) FROM Things t", "in a channel only"),
    ("SELECT VALUE meta(p) FROM People p", "needs an active dataset"),
    ("SELECT VALUE active_timestamp(x) FROM [1] x", "ranges over a dataset"),
    ("SELECT VALUE current_channel_time(nobody)", "unknown name nobody"),
    ("SELECT x.id FROM 'People' x", "People in quotes is a text, write it without quotes"),
    ("SELECT VALUE p.tags[*] FROM People p", "[*] is not supported"),
    ("FROM People p WITH x AS p.id SELECT VALUE x", "expected LET x = … after FROM"),
    ("SELECT VALUE n FROM Metadata.Node n", "there is no dataset Metadata.Node"),
    ("SELECT p.tags.* FROM People p", "* needs objects, not [string]"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[text for text, _ in REFUSED])
def test_a_query_that_means_nothing_is_refused_with_the_reason(
    cluster: LocalCluster, corpus: str, text: str, message: str
) -> None:
    with pytest.raises(InputError, match=re.escape(message)) as found:
        cluster.rows(f"USE {corpus};\n{text}")
    assert (found.value.statement, found.value.line) == (2, 2)


def test_each_function_of_the_guide_has_an_entry() -> None:
    functions = (ROOT / "docs" / "language.md").read_text("utf-8").split("\n## Functions\n")[1]
    rows = re.findall(r"^\| (`.*?) \| ", functions.split("### Functions of Spark\n")[0], re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`(\w+)\(", row)}
    texts = [*(entry.text for entry in ENTRIES), *(text for text, _ in (*CONSTANTS, *CONDITIONS))]
    assert len(documented) > 100
    assert documented - set(re.findall(r"\w+(?=\()", " ".join(texts))) == set()


def test_the_corpus_is_a_corpus() -> None:
    assert len(ENTRIES) + len(CONDITIONS) + len(CONSTANTS) >= 300
    assert len({entry.text for entry in ENTRIES}) == len(ENTRIES)
