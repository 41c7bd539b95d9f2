"""Reads Parquet files of any writer and converts their values to values of the model.

A single value that cannot be stored rejects its row, not the file. Values are therefore converted column by column as
long as that works, and one by one in a column where it fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tocsin.pipeline.sources.reader_types import BadFile, BadRecord, ReadRecord
from tocsin.rules.model.type_check import field_step
from tocsin.rules.model.values import Duration

_ROWS_AT_ONCE: Final = 4096
_BUFFER_BYTES: Final = 1 << 20
_MICROSECOND: Final = timedelta(microseconds=1)


def each(path: Path) -> Iterator[ReadRecord | BadRecord]:
    """Yields the rows of a file as objects, each with its number; a null column is NULL. A row with a value that cannot
    be stored becomes a BadRecord."""
    number = 0
    try:
        # Buffered, because otherwise a whole column of a row group, of any size, is read at once.
        with pq.ParquetFile(
            path, coerce_int96_timestamp_unit="us", pre_buffer=False, buffer_size=_BUFFER_BYTES
        ) as file:
            repeated = _repeated(file.schema_arrow.names)
            if repeated is not None:
                raise BadFile(f"it has two columns {field_step(repeated)}")
            for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, use_threads=False):
                size_bytes = batch.nbytes // max(batch.num_rows, 1)
                for record in _records(batch, number):
                    number += 1
                    yield record if isinstance(record, BadRecord) else (number, record, size_bytes)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        text = str(error).splitlines()
        raise BadFile(f"it is not Parquet, or damaged: {text[0] if text else type(error).__name__}") from error


def _records(batch: pa.RecordBatch, before: int) -> Iterator[dict[str, Any] | BadRecord]:
    names = batch.schema.names
    columns = [_values(name, column, before) for name, column in zip(names, batch.columns, strict=True)]
    for row in zip(*columns, strict=True):
        bad = next((value for value in row if value.__class__ is BadRecord), None)
        yield dict(zip(names, row, strict=True)) if bad is None else bad


def _values(name: str, column: pa.Array, before: int) -> list[Any]:
    """The values of a column; a value that cannot be stored is replaced by a BadRecord."""
    kind = _in_microseconds(column.type)
    try:
        # Not safe: nanoseconds beyond the microsecond are cut off, as everywhere here.
        cast = column if kind == column.type else column.cast(kind, safe=False)
        values: list[Any] = cast.to_pylist()
    except (OverflowError, ValueError) as error:
        if isinstance(error, pa.ArrowException):
            raise
        values = [_value(name, value, before + position) for position, value in enumerate(cast, 1)]
    if _needs_change(kind):
        return [_changed(name, value, before + position) for position, value in enumerate(values, 1)]
    return values


def _value(name: str, value: pa.Scalar[Any], number: int) -> Any:
    try:
        return value.as_py()
    except (OverflowError, ValueError) as error:
        return BadRecord(number, f"has a value that cannot be kept: {error}", field_step(name))


def _repeated(names: list[str]) -> str | None:
    return next((name for position, name in enumerate(names) if name in names[:position]), None)


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    """The same type with nanoseconds, which Python does not have, as microseconds, at any depth."""
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if pa.types.is_time64(kind):
        return pa.time64("us")
    if pa.types.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    if pa.types.is_dictionary(kind):
        return _in_microseconds(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_microseconds(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_microseconds(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_in_microseconds(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_in_microseconds(kind.key_type), _in_microseconds(kind.item_type))
    return kind


def _needs_change(kind: pa.DataType) -> bool:
    return not (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_date(kind)
        or pa.types.is_time(kind)
        or pa.types.is_timestamp(kind)
    )


def _changed(name: str, value: Any, number: int) -> Any:
    try:
        return _plainer(value)
    except (ValueError, OverflowError) as error:
        return BadRecord(number, str(error), field_step(name))


def _plainer(value: Any) -> Any:
    change = _CHANGES.get(value.__class__)
    return value if change is None else change(value)


def _text(value: bytes) -> str:
    # Older writers mark text as plain bytes.
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ValueError("is binary, which no type here can hold") from None


def _items(value: list[Any]) -> Any:
    # A map arrives as pairs, and no other value contains tuples.
    if value and value[0].__class__ is tuple:
        for key, _ in value:
            if not isinstance(key, str):
                raise ValueError("is a map whose keys are not text, which no type here can hold")
        return {key: _plainer(item) for key, item in value}
    return [_plainer(item) for item in value]


_CHANGES: Final[dict[type, Callable[[Any], Any]]] = {
    Decimal: float,
    timedelta: lambda value: Duration(0, value // _MICROSECOND),
    bytes: _text,
    list: _items,
    dict: lambda value: {name: _plainer(item) for name, item in value.items()},
}
