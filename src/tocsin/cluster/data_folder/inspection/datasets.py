"""Inspects a dataset's table: its log with checksums, its checkpoints, and every data file that a kept state names.

A power cut can tear only the newest entry of a log, and nobody was told of that one. Anything else that does not match
its checksum was damaged after it was acknowledged.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from tocsin.cluster.data_folder.inspection.findings import BRING_BACK, Finding, InspectionReport, unreadable_finding
from tocsin.pipeline.datasets.data_files import checksum_in, compute_checksum
from tocsin.pipeline.datasets.delta import log_entries
from tocsin.pipeline.datasets.delta.log_files import checkpoint_name, entry_name, log_of, log_versions, open_delta
from tocsin.pipeline.datasets.delta.log_recovery import LOST_FOLDER, can_be_torn
from tocsin.storage.interface import StorageFolder, is_unreachable

_NEWEST_TORN: Final = "the next start of the cluster sets it aside: nobody was told of it"
_DERIVED: Final = f"stop the cluster and move it away, if all log entries before it are there; else {BRING_BACK}"


class DatasetInspection:
    """Inspects one folder. `find_damage` may run several times; it does not read whole data files again."""

    def __init__(self, folder: StorageFolder, what: str, report: InspectionReport, *, deep: bool) -> None:
        self._folder = folder
        self._logs = log_of(folder)
        self._what = what
        self._report = report
        self._deep = deep
        self._whole: set[str] = set()  # the places of files

    def find_damage(self) -> Iterator[Finding]:
        try:
            if not self._folder.exists():
                yield self._damage(self._folder.url, "is missing")
                return
            named_files = yield from self._log()
            yield from self._state(named_files)
        except OSError as error:
            yield unreadable_finding(error, error.filename or self._folder.url, self._what)

    def _damage(self, place: str, problem: str, remedy: str = BRING_BACK) -> Finding:
        return Finding("damaged", place, self._what, problem, remedy)

    # ------------------------------------------------------------ log

    def _log(self) -> Generator[Finding, None, set[str]]:
        """Yields the findings of the log, and returns the data files that its entries name."""
        entries, checkpoints = log_versions(self._folder)
        named_files: set[str] = set()
        digests: dict[int, str] = {}
        base = max(checkpoints, default=-1)
        expected = base + 1
        for version in entries:
            place = self._logs.locate(entry_name(version))
            if version > base:
                if version != expected:
                    missing = self._logs.locate(entry_name(expected))
                    yield self._damage(missing, "is missing, and later entries are there")
                expected = version + 1
            try:
                content = self._logs.read(entry_name(version))
            except FileNotFoundError:
                continue  # the cluster's clean-up removed it
            self._count(place, len(content))
            state = log_entries.classify_entry(content)
            if state is log_entries.EntryState.TORN and can_be_torn(self._folder, version, entries):
                yield Finding("note", place, self._what, "was torn by a power cut", _NEWEST_TORN)
            elif state is not log_entries.EntryState.WHOLE:
                yield self._damage(place, "is not as it was written")
            else:
                named_files |= log_entries.list_added_files(content)
                digests.update([mark] if (mark := log_entries.read_checkpoint_mark(content)) is not None else [])
        for version in checkpoints:
            yield from self._checkpoint(checkpoint_name(version), digests.get(version))
        if not entries and not checkpoints:
            yield self._damage(self._logs.url, "is missing or empty")
        return named_files

    def _checkpoint(self, name: str, digest: str | None) -> Iterator[Finding]:
        place = self._logs.locate(name)
        try:
            if place in self._whole:
                return
            if digest is not None and log_entries.compute_digest(self._logs, name) != digest:
                yield self._damage(place, "is not as it was written: its checksum differs", _DERIVED)
                return
            with self._logs.open_input(name) as source:
                size_bytes = source.size()
                pq.read_table(source)
        except FileNotFoundError:
            return  # the cluster's clean-up removed it
        except (pa.ArrowException, ValueError) as error:
            yield self._damage(place, f"cannot be read as Parquet: {_first_line(error)}", _DERIVED)
            return
        self._count(place, size_bytes)

    # ------------------------------------------------------------ data files

    def _state(self, named: set[str]) -> Iterator[Finding]:
        try:
            actions = pa.table(open_delta(self._folder).get_add_actions(flatten=True))
        except (DeltaError, ValueError) as error:
            yield self._damage(self._logs.url, f"cannot be opened: {_first_line(error)}")
            return
        current: dict[str, tuple[int | None, int | None]] = {
            str(path): (size_bytes, rows)
            for path, size_bytes, rows in zip(
                *(actions.column(name).to_pylist() for name in ("path", "size_bytes", "num_records")), strict=True
            )
        }
        for name, (size_bytes, rows) in current.items():
            yield from self._data_file(name, size_bytes, rows, needed=True)
        # Files of past states disappear with time; those that exist must be whole.
        for name in sorted(named - set(current)):
            yield from self._data_file(name, None, None, needed=False)

    def _data_file(self, name: str, size_bytes: int | None, rows: int | None, *, needed: bool) -> Iterator[Finding]:
        place = self._folder.locate(name)
        if place in self._whole:
            return
        try:
            with self._folder.open_input(name) as source:
                actual_bytes = source.size()
                if size_bytes is not None and actual_bytes != size_bytes:
                    yield self._damage(place, f"has {actual_bytes:,} bytes instead of {size_bytes:,}")
                    return
                with pq.ParquetFile(source, page_checksum_verification=True) as file:
                    if rows is not None and file.metadata.num_rows != rows:
                        yield self._damage(place, f"has {file.metadata.num_rows:,} rows instead of {rows:,}")
                        return
                    checksum = checksum_in(name)
                    if self._deep and checksum is None:
                        for _ in file.iter_batches(batch_size=64 << 10):
                            pass
            if self._deep and checksum is not None:
                with self._folder.open_input(name) as source:
                    actual = compute_checksum(source)
                if actual != checksum:
                    yield self._damage(place, "is not as it was written: its checksum differs")
                    return
        except FileNotFoundError:
            if needed:
                yield self._damage(place, "is missing, and the newest state names it")
            return
        except (pa.ArrowException, ValueError, OSError) as error:
            if isinstance(error, OSError) and is_unreachable(error):
                yield unreadable_finding(error, place, self._what)
            else:
                yield self._damage(place, f"cannot be read as Parquet: {_first_line(error)}")
            return
        self._count(place, actual_bytes)

    def _count(self, place: str, size_bytes: int) -> None:
        if place not in self._whole:
            self._whole.add(place)
            self._report.files += 1
            self._report.size_bytes += size_bytes

    # ------------------------------------------------------------ set aside

    def list_set_aside(self) -> Iterator[Finding]:
        lost = self._folder.child(LOST_FOLDER)
        for name in lost.list_children():
            problem = "was set aside when the dataset was opened"
            yield Finding("note", lost.locate(name), self._what, problem, "remove it if unneeded")


def read_landed_position(folder: StorageFolder, feed_folder: str) -> int | None:
    """Returns how far the feed of this log has landed. None if the dataset cannot be opened (a finding of its own)."""
    try:
        return open_delta(folder).transaction_version(f"tocsin.position.feed.{feed_folder}") or 0
    except (DeltaError, OSError, ValueError):
        return None


def read_commit_number(folder: StorageFolder) -> int | None:
    """Returns the number of the newest commit. None if the dataset cannot be opened, which is a finding of its own."""
    try:
        return open_delta(folder).transaction_version("tocsin.commit") or 0
    except (DeltaError, OSError, ValueError):
        return None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
