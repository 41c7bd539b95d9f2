"""Constants with variables: arguments of procedures in expressions that need no engine."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tocsin.language.functions.constants import NotConstantError, evaluate, with_values
from tocsin.language.syntax.script import parse_query
from tocsin.rules.model.values import MISSING, Multiset, Point

NOW = datetime(2026, 11, 15, tzinfo=UTC)
VALUES: dict[str, Any] = {
    "a": 1, "odd name": "'); --", "missing": "there", "list": [1, {"x": [2]}], "gone": MISSING, "at": Point(1.0, 2.0),
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a", 1),
        ("[a, a]", [1, 1]),
        ("{'x': `odd name`, 'y': gone, 'z': {'a': a}}", {"x": "'); --", "z": {"a": 1}}),
        ("[gone, missing]", [None, "there"]),
        ("MISSING", MISSING),
        ("{{list}}", Multiset([[1, {"x": [2]}]])),
        ("create_circle(at, a)", None),
        ("(list)", [1, {"x": [2]}]),
    ],
)
def test_variables_have_their_values(text: str, value: Any) -> None:
    found = evaluate(with_values(parse_query(text), VALUES), NOW)
    if value is not None:
        assert found == value
    else:
        assert (found.center, found.radius) == (VALUES["at"], 1.0)


@pytest.mark.parametrize("text", ["b", "a.b", "list[0]", "a + 1", "(SELECT VALUE a FROM D a)", "A", "SELECT a"])
def test_what_needs_the_engine_still_does(text: str) -> None:
    with pytest.raises(NotConstantError):
        evaluate(with_values(parse_query(text), VALUES), NOW)


def test_a_value_used_twice_is_two_values() -> None:
    first, second = evaluate(with_values(parse_query("[list, list]"), VALUES), NOW)
    first[1]["x"].append(3)
    assert second == VALUES["list"] == [1, {"x": [2]}]
    assert parse_query("a").sql() == "a"
