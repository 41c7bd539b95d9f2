"""Keys of a dataset: equality, 64-bit hashes, and the positions of keys in a file.

Two keys are equal when all their parts are equal: numbers by value without conversion to double (but NaN equals NaN,
and -0.0 equals 0.0), strings by characters, times by instant. Hashes only narrow a search; an answer always rests on
an exact comparison.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.wire.errors import ConflictError, InputError

Hashes = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.int64]
KeyPath = tuple[str, ...]

# The seed differs per process, as Python's string hash does, so that an attacker cannot prepare colliding keys.
_SEED: Final = np.uint64(secrets.randbits(64) | 1)
_LOW: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX2: Final = np.uint64(0x94D049BB133111EB)


class KeyColumns:
    """The keys of some rows, in a form in which equal keys have equal parts."""

    __slots__ = ("parts", "shown")

    def __init__(self, parts: list[pa.Array], shown: list[pa.ChunkedArray]) -> None:
        self.parts = parts
        self.shown = shown

    def __len__(self) -> int:
        return len(self.parts[0])

    def take(self, positions: Positions) -> KeyColumns:
        rows = pa.array(positions)
        return KeyColumns([part.take(rows) for part in self.parts], [column.take(rows) for column in self.shown])

    def tuples(self) -> list[tuple[Any, ...]]:
        return list(zip(*(part.to_pylist() for part in self.parts), strict=True))

    def shown_at(self, position: int, paths: Sequence[KeyPath]) -> str:
        """The key as a person wrote it: `id = 7, area.code = "N1"`."""
        values = (column[position].as_py() for column in self.shown)
        return ", ".join(f"{'.'.join(path)} = {_shown(value)}" for path, value in zip(paths, values, strict=True))


def of_rows(rows: pa.Table, paths: Sequence[KeyPath]) -> KeyColumns:
    """The keys of these rows. Raises InputError if a part is missing."""
    shown = [_column(rows, path) for path in paths]
    for path, column in zip(paths, shown, strict=True):
        if column.null_count:
            raise InputError(f"the key {'.'.join(path)} is missing or null", hint="every record needs its whole key")
    return KeyColumns([_canonical(column) for column in shown], shown)


def _column(rows: pa.Table, path: KeyPath) -> pa.ChunkedArray:
    column = rows.column(path[0])
    for name in path[1:]:
        column = pc.struct_field(column, name)
    return column


def _canonical(column: pa.ChunkedArray) -> pa.Array:
    kind = column.type
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], kind)
    if pa.types.is_floating(kind):
        numbers = array.cast(pa.float64()).to_numpy(zero_copy_only=False) + 0.0  # -0.0 becomes 0.0
        return pa.array(np.where(np.isnan(numbers), np.nan, numbers).view(np.int64))
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_date32(kind):
        return array.cast(pa.int32()).cast(pa.int64()) if pa.types.is_date32(kind) else array.cast(pa.int64())
    if pa.types.is_temporal(kind):
        return array.cast(pa.int64())
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return array.cast(pa.string())
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return array.cast(pa.binary())
    if pa.types.is_decimal(kind):
        return array.cast(pa.string())
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return array
    raise InputError(f"a value of type {kind} cannot be a key")


def hashes(keys: KeyColumns) -> Hashes:
    """One number per key; equal keys have equal numbers."""
    result: Hashes | None = None
    for part in keys.parts:
        if pa.types.is_int64(part.type):
            words = part.to_numpy(zero_copy_only=False).view(np.uint64)
        else:
            words = np.fromiter(map(hash, part.to_pylist()), np.int64, len(part)).view(np.uint64)
        result = _mixed(words ^ _SEED) if result is None else _mixed(result * _MIX1 ^ words)
    if result is None:
        raise ValueError("a dataset has a key")
    return result


def _mixed(words: Hashes) -> Hashes:
    """SplitMix64: a bijection, so that keys of a single number never collide."""
    words = words + _LOW
    words = (words ^ (words >> np.uint64(30))) * _MIX1
    words = (words ^ (words >> np.uint64(27))) * _MIX2
    return words ^ (words >> np.uint64(31))


def first_repeated(keys: KeyColumns, hashed: Hashes) -> int | None:
    """The position of the first key that occurred before, if any."""
    if len(np.unique(hashed)) == len(hashed):
        return None
    seen: set[tuple[Any, ...]] = set()
    for position, key in enumerate(keys.tuples()):
        if key in seen:
            return position
        seen.add(key)
    return None


def last_of_each(keys: KeyColumns, hashed: Hashes) -> Positions | None:
    """The positions of each key's last row in ascending order; None if no key is repeated."""
    if len(np.unique(hashed)) == len(hashed):
        return None
    last = {key: position for position, key in enumerate(keys.tuples())}
    return np.array(sorted(last.values()), np.int64)


def first_of_each(keys: KeyColumns, hashed: Hashes) -> Positions | None:
    """The positions of each key's first row in ascending order; None if no key is repeated."""
    if len(np.unique(hashed)) == len(hashed):
        return None
    first: dict[tuple[Any, ...], int] = {}
    for position, key in enumerate(keys.tuples()):
        first.setdefault(key, position)
    return np.array(sorted(first.values()), np.int64)


def matches(keys: KeyColumns, present: KeyColumns) -> tuple[Positions, Positions]:
    """The wanted keys that are present: (positions in wanted, positions in present).

    `keys` holds each key once.
    """
    if len(keys.parts) == 1:
        indices = pc.index_in(present.parts[0], value_set=keys.parts[0])
        present_positions = np.flatnonzero(indices.is_valid().to_numpy(zero_copy_only=False))
        return indices.take(pa.array(present_positions)).to_numpy(zero_copy_only=False).astype(
            np.int64
        ), present_positions
    narrowed = np.ones(len(present), bool)
    for want, have in zip(keys.parts, present.parts, strict=True):
        narrowed &= pc.is_in(have, value_set=want).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(narrowed)
    position_of = {key: position for position, key in enumerate(keys.tuples())}
    pairs = [
        (position_of[key], int(row))
        for key, row in zip(present.take(rows).tuples(), rows, strict=True)
        if key in position_of
    ]
    ends = np.array(pairs, np.int64).reshape(-1, 2)
    return ends[:, 0], ends[:, 1]


def duplicate(keys: KeyColumns, position: int, paths: Sequence[KeyPath], what: str) -> ConflictError:
    shown = keys.shown_at(position, paths)
    return ConflictError(f"the key {shown} {what}", hint="UPSERT replaces; nothing was inserted", key=shown)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"' if len(value) <= 100 else f'"{value[:100]}…"'
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
