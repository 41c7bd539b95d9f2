"""What an entry of the corpus is, and the few tools its answers are computed with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tocsin.rules.model.values import MISSING


@dataclass(frozen=True, slots=True)
class Entry:
    """A query and the rows it must yield, computed in plain Python; `ordered` when their order is promised too."""

    text: str
    expected: Callable[[], Iterable[Any]]
    ordered: bool = False


def q(text: str, expected: Callable[[], Iterable[Any]]) -> Entry:
    return Entry(text, expected)


def ordered(text: str, expected: Callable[[], Iterable[Any]]) -> Entry:
    return Entry(text, expected, ordered=True)


def get(value: Any, *path: str | int) -> Any:
    """What stands at the path, MISSING where nothing does."""
    for step in path:
        if isinstance(step, str):
            value = value.get(step, MISSING) if isinstance(value, dict) else MISSING
        else:
            value = value[step] if isinstance(value, list) and -len(value) <= step < len(value) else MISSING
    return value


def known(value: Any) -> bool:
    return value is not None and value is not MISSING


def obj(**fields: Any) -> dict[str, Any]:
    """An object without its MISSING fields."""
    return {name: value for name, value in fields.items() if value is not MISSING}


def grouped(rows: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def absent_first(value: Any) -> tuple[bool, Any]:
    """NULL and MISSING come before every value."""
    return (known(value), value if known(value) else 0)
