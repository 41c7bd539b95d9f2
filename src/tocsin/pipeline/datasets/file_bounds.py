"""The least and the greatest values of columns in data files, by which a query leaves out files.

They come from the log: for files of this process from its own commits, for older ones from what delta-rs lists. They
are turned into Python's values at the first question about a column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Protocol

import pyarrow as pa

from tocsin.pipeline.datasets.data_files import DataFile

# Engines compare a whole number with a fraction as doubles, which are exact up to here.
_EXACT: Final = 1 << 53


class WantedValues(Protocol):
    """Wanted rows have a value from `least` to `greatest` in the column; None is no bound."""

    @property
    def path(self) -> tuple[str, ...]: ...
    @property
    def least(self) -> Any: ...
    @property
    def greatest(self) -> Any: ...


class FileBounds:
    """Thread-safe: what it remembers never changes for a file."""

    def __init__(self, schema: pa.Schema, listed: pa.Table) -> None:
        """`listed`: the files of the table as it was opened, as `DeltaTable.get_add_actions(flatten=True)` says."""
        self._schema = schema
        self._listed = listed
        self._columns: dict[str, Mapping[str, Any]] = {}

    def excludes(self, file: DataFile, wanted: Sequence[WantedValues]) -> bool:
        """Whether no row of the file can have all these values."""
        return any(self._is_outside(file, values) for values in wanted)

    def _is_outside(self, file: DataFile, wanted: WantedValues) -> bool:
        family = self._family_of(wanted.path)
        if family is None:
            return False
        least, greatest = (
            self._bound(file, end, wanted.path, family) for end in ("min", "max")
        )  # of the file's values
        if wanted.least is not None and _is_below(greatest, wanted.least, family):
            return True
        return wanted.greatest is not None and _is_below(wanted.greatest, least, family)

    def _family_of(self, path: tuple[str, ...]) -> str | None:
        kind: pa.DataType = pa.struct(list(self._schema))
        for name in path:
            if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
                return None
            kind = kind.field(name).type
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            return "number"
        return "text" if pa.types.is_string(kind) else "moment" if pa.types.is_timestamp(kind) else None

    def _bound(self, file: DataFile, end: str, path: tuple[str, ...], family: str) -> Any:
        own = file.statistics.min_values if end == "min" else file.statistics.max_values
        if own:
            value: Any = own
            for name in path:
                value = value.get(name) if isinstance(value, Mapping) else None
            return datetime.fromisoformat(value) if family == "moment" and isinstance(value, str) else value
        return self._column(".".join((end, *path))).get(file.name)

    def _column(self, name: str) -> Mapping[str, Any]:
        if name not in self._columns:
            values: Mapping[str, Any] = {}
            if name in self._listed.column_names:
                names = self._listed.column("path").to_pylist()
                values = dict(zip(names, self._listed.column(name).to_pylist(), strict=True))
            self._columns[name] = values
        return self._columns[name]


def _is_below(value: Any, other: Any, family: str) -> bool:
    """Whether `value < other` is certain."""
    if family == "number":
        if not _is_number(value) or not _is_number(other):
            return False
        if type(value) is not type(other) and (abs(value) >= _EXACT or abs(other) >= _EXACT):
            return False
        return bool(value < other)
    if family == "text":
        return isinstance(value, str) and isinstance(other, str) and value < other
    return isinstance(value, datetime) and isinstance(other, datetime) and value < other


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
