"""The Parquet files of a dataset: written completely and synced before any log entry names them, read as Arrow.

A file is never changed, and its name is never used again. The name ends with a checksum of the whole file, because
Parquet has checksums for pages, but not for the footer and the page headers.

    part-4d1c…-9ae0b31f.parquet
"""

from __future__ import annotations

import re
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tocsin.pipeline.datasets.delta.statistics import ColumnStatistics, Leaf, Summary, statistics_leaves, timestamp_text
from tocsin.rules.model.columns import AT, COMMIT
from tocsin.storage.interface import StorageFolder, is_unreachable
from tocsin.wire.errors import InputError, StoreError, UnavailableError

AT_TYPE: Final = pa.timestamp("us", "UTC")
_OURS: Final = pa.schema([(COMMIT, pa.int64()), (AT, AT_TYPE)])
SUFFIX: Final = ".parquet"
_CHECKED_NAME: Final = re.compile(r"part-[0-9a-f]{32}-([0-9a-f]{8})\.parquet")
_CHECKED_BYTES: Final = 1 << 20

_READ_ROWS: Final = 64 << 10
LARGEST_FILE_BYTES: Final = 128 << 20


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file and what is known about it without opening it."""

    name: str
    size_bytes: int
    rows: int
    first_commit: int
    last_commit: int
    first_at_us: int
    last_at_us: int
    # Statistics of the declared columns for the log entry that adds the file; they are not read back.
    statistics: Summary = field(default=Summary(), compare=False, repr=False)

    def add_action(self, *, data_change: bool) -> dict[str, Any]:
        declared = self.statistics
        low = {**declared.min_values, COMMIT: self.first_commit, AT: timestamp_text(self.first_at_us)}
        high = {**declared.max_values, COMMIT: self.last_commit, AT: timestamp_text(self.last_at_us)}
        nulls = {**declared.null_counts, COMMIT: 0, AT: 0}
        stats = orjson.dumps({"numRecords": self.rows, "minValues": low, "maxValues": high, "nullCount": nulls})
        return {
            "add": {
                "path": self.name, "partitionValues": {}, "size": self.size_bytes,
                "modificationTime": self.last_at_us // 1000, "dataChange": data_change, "stats": stats.decode(),
            }
        }  # fmt: skip

    def remove_action(self, at_us: int, *, data_change: bool) -> dict[str, Any]:
        return {
            "remove": {
                "path": self.name, "dataChange": data_change, "deletionTimestamp": at_us // 1000,
                "extendedFileMetadata": True, "partitionValues": {}, "size": self.size_bytes,
            }
        }  # fmt: skip


def from_add_actions(actions: Any, folder: StorageFolder) -> dict[str, DataFile]:
    """The files of a table as `DeltaTable.get_add_actions(flatten=True)` lists them, the oldest rows first.

    Delta lists the statistics of some columns only (by default of the first 32), and another engine may have written
    none. The missing values are read from the file itself.
    """
    table = pa.table(actions)
    files = []
    modified_ms = _listed(table, "modification_time")
    for at_ms, name, size_bytes, *known in zip(modified_ms, *(_listed(table, key) for key in _LISTED), strict=True):
        if None in known:
            files.append(_looked_into(folder, name, size_bytes, at_ms or 0))
        else:
            files.append(DataFile(name, size_bytes, *known))
    return {file.name: file for file in sorted(files, key=lambda file: (file.first_commit, file.last_commit))}


# The columns in the order of the fields of DataFile.
_LISTED: Final = ("path", "size_bytes", "num_records", f"min.{COMMIT}", f"max.{COMMIT}", f"min.{AT}", f"max.{AT}")


def _listed(table: pa.Table, name: str) -> list[Any]:
    if name not in table.column_names:
        return [None] * table.num_rows
    column = table.column(name)
    values: list[Any] = (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
    return values


def _looked_into(folder: StorageFolder, name: str, size_bytes: int, modified_ms: int) -> DataFile:
    """Describes the file from its footer or, if the footer has no statistics, from its rows.

    Rows of another program may lack a commit number: they count as older than every commit.
    """
    with folder.open_input(name) as source, pq.ParquetFile(source) as file:
        metadata = file.metadata
        commits, ats_us = (_ends(metadata, column, kind) for column, kind in ((COMMIT, pa.int64()), (AT, AT_TYPE)))
        if commits and ats_us:
            return DataFile(name, size_bytes, metadata.num_rows, min(commits), max(commits), min(ats_us), max(ats_us))
        if not {COMMIT, AT} <= set(file.schema_arrow.names):
            return DataFile(name, size_bytes, metadata.num_rows, 0, 0, modified_ms * 1000, modified_ms * 1000)
        seen = _Seen((), modified_ms * 1000)
        for batch in file.iter_batches(batch_size=_READ_ROWS, columns=[COMMIT, AT], use_threads=False):
            seen.add(pa.Table.from_batches([batch]).cast(_OURS))
        return seen.file(name, size_bytes)


def _ends(about: pq.FileMetaData, column: str, kind: pa.DataType) -> list[int]:
    """The minimum and the maximum of every row group; empty if a row group has no statistics."""
    # Find the column by its path: a struct of the record may have a field of the same name.
    index = next((number for number in range(about.num_columns) if about.schema.column(number).path == column), None)
    if index is None:
        return []
    ends: list[int] = []
    for group in range(about.num_row_groups):
        statistics = about.row_group(group).column(index).statistics
        if statistics is None or not statistics.has_min_max:
            return []
        ends += pa.array([statistics.min, statistics.max], kind).cast(pa.int64()).to_pylist()
    return ends


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of the record and ours."""
    for name in (COMMIT, AT):
        if name in schema.names:
            raise InputError(f"{name} is a column of the system")
    return pa.schema([*schema, *_OURS])


class DataFolder:
    """The folder of the data files and their encoding."""

    def __init__(
        self,
        folder: StorageFolder,
        schema: pa.Schema,
        keys: Sequence[Sequence[str]],
        largest_bytes: int = LARGEST_FILE_BYTES,
    ) -> None:
        """`largest_bytes`: when a file has this many, the next rows go to another file."""
        self._largest_bytes = largest_bytes
        self.folder = folder
        self.schema = schema
        # A key is different in every row, so a dictionary encoding would be built in vain.
        unique = {".".join(key) for key in keys} if len(keys) == 1 else set()
        self._leaves = statistics_leaves(schema)
        self._dictionary = [leaf for field in schema for leaf in _leaves(field.name, field.type) if leaf not in unique]

    def full_path(self, name: str) -> str:
        """The path for Spark."""
        return self.folder.spark_path(name)

    def write(self, tables: Iterable[pa.Table], *, as_one: bool = False) -> list[DataFile]:
        """Writes the rows as files of bounded size, or as one file, synced. An error leaves no file behind."""
        written: list[DataFile] = []
        created: list[str] = []
        try:
            # Row groups of 32 MB: enough for good encoding and few seeks, and a bound on the memory of a rewrite.
            groups = _grouped(tables, self._largest_bytes // 4)
            group = next(groups, None)
            while group is not None:
                draft_name = f"part-{uuid.uuid4().hex}{SUFFIX}"
                seen = _Seen(self._leaves)
                with self.folder.create(draft_name) as draft:
                    with pq.ParquetWriter(
                        draft.sink,
                        self.schema,
                        compression="snappy",
                        use_dictionary=self._dictionary,
                        write_page_checksum=True,
                    ) as writer:
                        while group is not None and (as_one or draft.sink.tell() < self._largest_bytes):
                            writer.write_table(group)
                            seen.add(group)
                            group = next(groups, None)
                    size_bytes = draft.sink.tell()
                    with draft.read_back() as content:
                        created.append(name := _checked_name(draft_name, compute_checksum(content)))
                    draft.publish(name)
                written.append(seen.file(name, size_bytes))
            return written
        except BaseException:
            self.remove(created)
            raise

    def remove(self, names: Iterable[str]) -> int:
        return self.folder.remove(names)

    def size_of(self, name: str) -> int | None:
        """The size of the file in bytes; None if it does not exist."""
        return self.folder.size_of(name)

    def names(self) -> set[str]:
        """The data files on the disk, whether or not the log names them."""
        return {name for name in self.folder.list_names() if name.endswith(SUFFIX)}

    def sizes(self) -> dict[str, int]:
        """The same files with their sizes."""
        return {file.name: file.size_bytes for file in self.folder.list_files() if file.name.endswith(SUFFIX)}

    def read(self, name: str) -> Iterator[pa.Table]:
        """Yields the rows of a file in order, a bounded piece at a time. Raises StoreError if the file is damaged:
        copying damaged rows to a new file would hide the damage.
        """
        with self._open(name) as file:
            for batch in file.iter_batches(batch_size=_READ_ROWS, use_threads=False):
                yield self._fitted(pa.Table.from_batches([batch]))

    def _fitted(self, rows: pa.Table) -> pa.Table:
        if rows.schema.names == self.schema.names:
            return rows.cast(self.schema)
        # Another program may have left out columns, or ordered them otherwise.
        columns = [
            rows.column(field.name).cast(field.type)
            if field.name in rows.column_names
            else pa.nulls(rows.num_rows, field.type)
            for field in self.schema
        ]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def read_columns(self, name: str, columns: Sequence[str]) -> pa.Table:
        """All rows of the named columns (dots lead into structs)."""
        with self._open(name) as file:
            return file.read(columns=list(columns), use_threads=False)

    @contextmanager
    def _open(self, name: str) -> Iterator[pq.ParquetFile]:
        try:
            with (
                self.folder.open_input(name) as source,
                pq.ParquetFile(source, page_checksum_verification=True) as file,
            ):
                yield file
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            if is_unreachable(error):
                raise UnavailableError(f"the data file {self.folder.locate(name)} cannot be read now") from error
            raise StoreError(
                f"the data file {self.folder.locate(name)} is damaged: {str(error).splitlines()[0]}",
                hint="bring it back from a copy of the disk, or restore a backup; tocsin check names all damage",
            ) from error


def _checked_name(draft: str, checksum: str) -> str:
    return f"{draft.removesuffix(SUFFIX)}-{checksum}{SUFFIX}"


def checksum_in(name: str) -> str | None:
    """The checksum in a data file's name; None if an older Tocsin, or another engine, wrote the file."""
    match = _CHECKED_NAME.fullmatch(name)
    return None if match is None else match[1]


def compute_checksum(file: pa.NativeFile) -> str:
    """The checksum of the whole file."""
    checksum = 0
    while piece := file.read(_CHECKED_BYTES):
        checksum = zlib.crc32(piece, checksum)
    return f"{checksum:08x}"


class _Seen:
    """Collects the statistics of the rows that go into a file."""

    def __init__(self, leaves: Sequence[Leaf], usual_at_us: int = 0) -> None:
        """`usual_at_us`: the time of rows that have none."""
        self._usual_at_us = usual_at_us
        self._rows = 0
        self._statistics = ColumnStatistics(leaves)
        self._commits: list[int] = []
        self._ats_us: list[int] = []

    def add(self, table: pa.Table) -> None:
        self._rows += table.num_rows
        for column, values in ((COMMIT, self._commits), (AT, self._ats_us)):
            ends = pc.min_max(table.column(column).cast(pa.int64()))
            values += [end for end in (ends["min"].as_py(), ends["max"].as_py()) if end is not None]
        self._statistics.add(table)

    def file(self, name: str, size_bytes: int) -> DataFile:
        commits, ats_us = self._commits or [0], self._ats_us or [self._usual_at_us]
        ends = min(commits), max(commits), min(ats_us), max(ats_us)
        return DataFile(name, size_bytes, self._rows, *ends, statistics=self._statistics.summary())


def _grouped(tables: Iterable[pa.Table], group_bytes: int) -> Iterator[pa.Table]:
    """The same rows in pieces that make good row groups; no piece is empty."""
    waiting: list[pa.Table] = []
    waiting_bytes = 0
    for table in tables:
        if table.num_rows == 0:
            continue
        waiting.append(table)
        waiting_bytes += table.nbytes
        if waiting_bytes >= group_bytes:
            yield pa.concat_tables(waiting)
            waiting, waiting_bytes = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def _leaves(path: str, kind: pa.DataType) -> Iterator[str]:
    """The Parquet column paths of an Arrow column."""
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves(f"{path}.{field.name}", field.type)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _leaves(f"{path}.list.element", kind.value_type)
    elif pa.types.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", kind.key_type)
        yield from _leaves(f"{path}.key_value.value", kind.item_type)
    else:
        yield path
