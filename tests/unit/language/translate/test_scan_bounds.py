"""What a query asks of its scans: only comparisons that every row of the answer must satisfy."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlglot import parse_one

from tocsin.language.translate.scan_bounds import find_bounded_scans


def bounds(sql: str) -> dict[str, list[tuple[str, Any, Any]]]:
    """By the view, the bounds of its columns."""
    return {
        scan.table.name: [(".".join(bound.path), bound.least, bound.greatest) for bound in scan.bounds]
        for scan in find_bounded_scans(parse_one(sql, dialect="spark"))
    }


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("(`d`.`id` = CAST(5 AS BIGINT))", ("id", 5, 5)),
        ("`d`.`id` < CAST(-5 AS BIGINT)", ("id", None, -5)),
        ("`d`.`id` >= CAST(5 AS BIGINT)", ("id", 5, None)),
        ("CAST(5 AS BIGINT) < `d`.`id`", ("id", 5, None)),
        ("CAST(5 AS BIGINT) >= `d`.`id`", ("id", None, 5)),
        ("`d`.`x` > 2.5E0", ("x", 2.5, None)),
        ("`d`.`said` <= 'x'", ("said", None, "x")),
        ("`d`.`z`.`n` = CAST(4 AS BIGINT)", ("z.n", 4, 4)),
        ("`d`.`id` IN (CAST(3 AS BIGINT), CAST(1 AS BIGINT))", ("id", 1, 3)),
        ("`d`.`at` < CAST('2026-02-01 00:00:00.000000Z' AS TIMESTAMP)", ("at", None, datetime(2026, 2, 1, tzinfo=UTC))),
    ],
)
def test_a_comparison_with_a_constant_is_a_bound(where: str, found: tuple[str, Any, Any]) -> None:
    assert bounds(f"SELECT `d`.`id` FROM `v` AS `d` WHERE {where}") == {"v": [found]}


@pytest.mark.parametrize(
    "where",
    [
        "`d`.`id` <> CAST(5 AS BIGINT)",
        "`d`.`id` = CAST(5 AS BIGINT) OR `d`.`said` = 'x'",
        "NOT (`d`.`id` = CAST(5 AS BIGINT))",
        "`d`.`id` + CAST(1 AS BIGINT) = CAST(5 AS BIGINT)",
        "`d`.`id` = `d`.`other`",
        "`d`.`id` = CAST('5' AS BIGINT)",
        "`d`.`id` IN (CAST(5 AS BIGINT), NULL)",
        "`d`.`id` IN (CAST(5 AS BIGINT), 'x')",
        "COALESCE(`d`.`id` = CAST(5 AS BIGINT), TRUE)",
        "(`d`.`id` = CAST(5 AS BIGINT)) IS NULL",
        "`d`.`id` NOT IN (CAST(5 AS BIGINT))",
        "`d`.`id` <=> CAST(5 AS BIGINT)",
        "`other`.`id` = CAST(5 AS BIGINT)",
    ],
)
def test_anything_else_is_none(where: str) -> None:
    assert bounds(f"SELECT `d`.`id` FROM `v` AS `d` WHERE {where}") == {}


def test_all_comparisons_joined_by_and_count_for_their_own_scans() -> None:
    found = bounds(
        "SELECT `d`.`id` FROM `v` AS `d` LEFT JOIN `w` AS `e` ON `d`.`id` = `e`.`id` "
        "WHERE ((`d`.`id` >= CAST(1 AS BIGINT) AND `d`.`id` <= CAST(5 AS BIGINT)) AND (`e`.`said` = 'q'))"
    )
    assert found == {"v": [("id", 1, None), ("id", None, 5)], "w": [("said", "q", "q")]}


def test_a_subquery_bounds_its_own_scan_and_not_the_one_around_it() -> None:
    found = bounds(
        "SELECT `d`.`id` FROM `v` AS `d` WHERE EXISTS(SELECT 1 FROM `w` AS `e` WHERE `e`.`id` = `d`.`id` "
        "AND `e`.`id` = CAST(1 AS BIGINT) AND `d`.`id` = CAST(2 AS BIGINT))"
    )
    assert found == {"w": [("id", 1, 1)]}


def test_the_condition_of_a_join_is_none() -> None:
    assert bounds("SELECT 1 FROM `v` AS `d` LEFT JOIN `w` AS `e` ON `e`.`id` = CAST(1 AS BIGINT)") == {}
