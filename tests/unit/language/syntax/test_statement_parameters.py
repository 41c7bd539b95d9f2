"""How parameters of statements are read: `$name`, `$1` and `?`."""

from __future__ import annotations

from typing import Any

import pytest
from sqlglot import exp

from tocsin.language.syntax import script
from tocsin.wire.errors import StatementError


def names(text: str) -> list[str]:
    (statement,) = script.statements(text)
    query: Any = statement
    return [column.name for column in query.query.find_all(exp.Column) if column.name.startswith("$")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT VALUE $x", ["$x"]),
        ("SELECT VALUE $some_name + $other", ["$some_name", "$other"]),
        ("SELECT VALUE [$1, $2]", ["$1", "$2"]),
        ("SELECT VALUE [?, ?, ?]", ["$1", "$2", "$3"]),
        ("SELECT VALUE x FROM D x WHERE x.a IN $list AND x.b LIKE ?", ["$list", "$1"]),
        ("SELECT VALUE ($x)", ["$x"]),
    ],
)
def test_a_parameter_is_a_variable_whose_name_begins_with_a_dollar(text: str, expected: list[str]) -> None:
    assert sorted(names(text)) == sorted(expected)


@pytest.mark.parametrize(
    "text",
    ["SELECT VALUE @x", "SELECT VALUE $ x", "SELECT VALUE $", "SELECT VALUE $$", "SELECT VALUE $-1",
     "SELECT VALUE D.$x FROM D", "SELECT VALUE D.? FROM D", "SELECT VALUE $'x'", "USE $x",
     "CREATE DATAVERSE $x", "SELECT VALUE x AS $y"],
)  # fmt: skip
def test_other_signs_and_parameters_in_place_of_names_are_refused(text: str) -> None:
    with pytest.raises(StatementError):
        list(script.statements(text))
