"""Statistics of a data file's columns for the Delta log, so that other engines can skip files.

A bound is written only where it holds for every engine: long text is cut (downwards for the minimum, upwards for the
maximum), a column with a NaN or an infinite bound has none, and 0.0 is distinguished from -0.0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tocsin.clock import from_us
from tocsin.rules.model.columns import AT, COMMIT, OPEN

# As many columns as Delta's own writers use, which limits the cost for wide records.
COLUMNS_MAX: Final = 32
TEXT_MAX: Final = 32  # characters
_LAST_CHARACTER: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)

_Path: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column, or a field inside a struct, of a type that has statistics."""

    path: _Path
    family: str


class Summary(NamedTuple):
    """Statistics as the log writes them: structs are nested objects."""

    min_values: Mapping[str, Any] = MappingProxyType({})
    max_values: Mapping[str, Any] = MappingProxyType({})
    null_counts: Mapping[str, Any] = MappingProxyType({})


class ColumnStatistics:
    """Bounds and null counts of these columns over all added rows."""

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        self._leaves = leaves
        self._nulls = dict.fromkeys((leaf.path for leaf in leaves), 0)
        self._least: dict[_Path, Any] = {}
        self._greatest: dict[_Path, Any] = {}
        self._unbounded: set[_Path] = set()

    def add(self, table: pa.Table) -> None:
        for leaf in self._leaves:
            column = table.column(leaf.path[0])
            if len(leaf.path) > 1:
                column = pc.struct_field(column, list(leaf.path[1:]))
            nulls = column.null_count
            self._nulls[leaf.path] += nulls
            if nulls < len(column) and leaf.family in _BOUNDS and leaf.path not in self._unbounded:
                self._widen(leaf, column)

    def _widen(self, leaf: Leaf, column: pa.ChunkedArray) -> None:
        if leaf.family == "number" and pc.any(pc.is_nan(column)).as_py():
            self._unbounded.add(leaf.path)  # engines disagree about the order of NaN among the numbers
            return
        if leaf.family in _COUNTED:
            column = column.cast(_COUNTED[leaf.family])  # Arrow's dates and timestamps have a wider range than Python's
        ends = pc.min_max(column)
        least, greatest = ends["min"].as_py(), ends["max"].as_py()
        self._least[leaf.path] = min(least, self._least.get(leaf.path, least))
        self._greatest[leaf.path] = max(greatest, self._greatest.get(leaf.path, greatest))

    def summary(self) -> Summary:
        return Summary(self._bounds(self._least, 0), self._bounds(self._greatest, 1), _nested(self._nulls))

    def _bounds(self, found: Mapping[_Path, Any], end: int) -> dict[str, Any]:
        bounded = [leaf for leaf in self._leaves if leaf.path in found and leaf.path not in self._unbounded]
        bounds = {leaf.path: _BOUNDS[leaf.family][end](found[leaf.path]) for leaf in bounded}
        return _nested({path: bound for path, bound in bounds.items() if bound is not None})


def statistics_leaves(schema: pa.Schema) -> tuple[Leaf, ...]:
    """The declared columns that have statistics; the caller adds our own columns."""
    declared = (field for field in schema if field.name not in (COMMIT, AT))
    return tuple(islice((leaf for field in declared for leaf in _leaves_of((field.name,), field)), COLUMNS_MAX))


def statistics_columns(schema: pa.Schema) -> str:
    """The value of `delta.dataSkippingStatsColumns`: the declared columns and ours.

    delta-rs 1.6 lists nothing after a struct that is not named here, so every struct is named.
    """
    return ",".join(field.name for field in schema if field.name != OPEN and not pa.types.is_list(field.type))


def _leaves_of(path: _Path, field: pa.Field) -> Iterator[Leaf]:
    if field.name == OPEN:
        return
    if pa.types.is_struct(field.type):
        for child in field.type:
            yield from _leaves_of((*path, child.name), child)
    elif field.type in _FAMILIES:
        yield Leaf(path, _FAMILIES[field.type])


def _nested(values: Mapping[_Path, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for path, value in values.items():
        level = nested
        for name in path[:-1]:
            level = level.setdefault(name, {})
        level[path[-1]] = value
    return nested


# ---------------------------------------------------------------- bounds as the log writes them


def _at_least(number: float) -> float | None:
    return None if math.isinf(number) else -0.0 if number == 0 else number


def _at_most(number: float) -> float | None:
    return None if math.isinf(number) else 0.0 if number == 0 else number


def _prefix(text: str) -> str:
    return text[:TEXT_MAX]


def _above(text: str) -> str | None:
    """The text, or a short text that is greater than every text with the same beginning."""
    if len(text) <= TEXT_MAX:
        return text
    characters = [ord(character) for character in text[:TEXT_MAX]]
    while characters and characters[-1] == _LAST_CHARACTER:
        characters.pop()
    if not characters:
        return None
    following = characters[-1] + 1
    characters[-1] = _SURROGATES.stop if following in _SURROGATES else following
    return "".join(map(chr, characters))


def _day(days: int) -> str | None:
    ordinal = days + date(1970, 1, 1).toordinal()
    return date.fromordinal(ordinal).isoformat() if 1 <= ordinal <= date.max.toordinal() else None


def timestamp_text(at_us: int) -> str | None:
    try:
        at = from_us(at_us)
    except OverflowError:
        return None
    return at.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _same(value: Any) -> Any:
    return value


_FAMILIES: Final[Mapping[pa.DataType, str]] = {
    pa.int8(): "integer", pa.int16(): "integer", pa.int32(): "integer", pa.int64(): "integer",
    pa.float32(): "number", pa.float64(): "number", pa.string(): "text",
    pa.date32(): "date", pa.timestamp("us", "UTC"): "moment",
    pa.bool_(): "boolean",  # two values exclude no file, so only its nulls are counted
}  # fmt: skip
_COUNTED: Final[Mapping[str, pa.DataType]] = {"date": pa.int32(), "moment": pa.int64()}
# Convert the minimum and the maximum to what the log says; None omits the bound.
_BOUNDS: Final[Mapping[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]]] = {
    "integer": (_same, _same),
    "number": (_at_least, _at_most),
    "text": (_prefix, _above),
    "date": (_day, _day),
    "moment": (timestamp_text, timestamp_text),
}
