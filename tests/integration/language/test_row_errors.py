"""Errors of rows are the statement's fault, as Spark raises them, and no lack of capacity."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.in_process_cluster import LocalCluster
from tocsin.wire.errors import StatementError

NAME = "row_errors"
RECORD = {"id": 1, "s": "(", "n": 0, "big": 2**63 - 1, "deep": "[" * 1_001 + "]" * 1_001}
ERRORS = [
    ("1 div d.n", "zero"), ("bigint(d.s)", "cast"), ("d.big + 1", "too large"), ("d.big * 5", "too large"),
    ("regexp_like('abc', d.s)", "regular expression"), ("to_date(d.s)", "cast"),
    ("to_timestamp(d.s, 'yyyy')", "does not match the pattern"), ("to_number(d.s, '99')", "format"),
    ("element_at([1, 2], int(d.n) + 5)", "no element at this place"), ("raise_error(d.s)", r"\("),
    ("make_date(2020, 13, int(d.n))", "MonthOfYear"), ("parse_json(d.deep)", "depth"),
    ("parse_json(d.s)", "token|character"),
    ("sequence(1, 10, int(d.n))", "sequence"), ("format_string('%q', d.n)", "Conversion"),
    ("from_utc_timestamp(current_timestamp(), d.s)", "timezone"), ("map(d.s, 1, d.s, 2)", "Duplicate"),
    ("url_decode('%' || d.s)", "URL"), ("cast(d.s AS boolean)", "cast"), ("interval '1' month * d.big", "overflow"),
    ("repeat(d.s, int(d.id) * 20000000)", "repeat"),
]  # fmt: skip


@pytest.fixture(scope="module")
def dataverse(cluster: LocalCluster) -> Iterator[str]:
    cluster.run(f"""
        CREATE DATAVERSE {NAME}; USE {NAME};
        CREATE TYPE T AS {{ id: int, s: string, n: bigint, big: bigint, deep: string }};
        CREATE DATASET D(T) PRIMARY KEY id;
        INSERT INTO D {json.dumps([RECORD])};
    """)
    yield NAME
    cluster.run(f"DROP DATAVERSE {NAME}")


@pytest.mark.parametrize(("expression", "said"), ERRORS)
def test_an_error_of_a_row_is_the_statements(cluster: LocalCluster, dataverse: str, expression: str, said: str) -> None:
    with pytest.raises(StatementError, match=said):
        cluster.rows(f"USE {dataverse}; SELECT VALUE {expression} FROM D d")


@pytest.mark.parametrize("name", ["a,b", "a.b", "a b", "a`b"])
def test_a_variable_of_a_lambda_with_an_odd_name_is_refused_with_the_reason(cluster: LocalCluster, name: str) -> None:
    quoted = name.replace("`", "``")
    with pytest.raises(StatementError, match="cannot name a variable of a lambda"):
        cluster.rows(f"SELECT VALUE transform([1], `{quoted}` -> 1)")
    assert cluster.rows("SELECT VALUE transform([1], `größe_1` -> `größe_1` + 1)") == [[2]]
