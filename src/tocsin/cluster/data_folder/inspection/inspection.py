"""Inspects all durable files of a data folder, read-only, also beside a running cluster.

It takes no lock and changes nothing, so that an operator can run it at any time. What was dropped meanwhile is left out
of the findings: the catalog is read again at the end. A missing store looks like a new folder; the traces of its use
elsewhere (datasets, a lock file, a log) tell the two apart.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tocsin.cluster.backup.manifest import CATALOG, CHANNELS, DATASETS, INTAKE
from tocsin.cluster.catalog.entries import BrokerEntry, CatalogEntry, ChannelEntry, DatasetEntry, FeedEntry
from tocsin.cluster.catalog.entry_json import entry_from_json
from tocsin.cluster.catalog.refs import Ref, full_name
from tocsin.cluster.data_folder.clock_guard import RECORD as CLOCK
from tocsin.cluster.data_folder.clock_guard import parse_record
from tocsin.cluster.data_folder.inspection.datasets import DatasetInspection, read_commit_number, read_landed_position
from tocsin.cluster.data_folder.inspection.feeds import (
    inspect_log,
    inspect_notes,
    inspect_positions,
    inspect_seen_items,
)
from tocsin.cluster.data_folder.inspection.findings import (
    Finding,
    InspectionReport,
    confirm_findings,
    unreadable_finding,
)
from tocsin.cluster.data_folder.lost_folder import DATASET, LOST, TAIL, describe
from tocsin.cluster.data_folder.removals import list_content
from tocsin.cluster.data_folder.storage_owner import OWNER
from tocsin.cluster.feeds.options import feed_options
from tocsin.cluster.intake import segments
from tocsin.pipeline.datasets.delta.log_files import log_of
from tocsin.storage.interface import StorageFolder
from tocsin.storage.local import LocalFolder
from tocsin.store.broker.files import PATTERN, broker_of, file_of
from tocsin.store.sqlite.file import StoreLayout
from tocsin.store.sqlite.inspection import find_problems, read_catalog, read_channel_vectors
from tocsin.wire.errors import NotFoundError, TocsinError

OnInspected = Callable[[int, int, str], None]

CHECKED: Final = frozenset({CATALOG, CHANNELS, PATTERN, DATASETS, INTAKE, CLOCK, LOST})
NOT_CHECKED: Final = {
    "python": "your own code",
    "scratch": "made anew at each start",
    "lock": "made anew at each start",
    OWNER: "a random number that marks the storage",
}
"""The rest of the data folder, with the reason why each part is not inspected."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The state of the catalog at one moment."""

    entries: Sequence[CatalogEntry] = ()
    removed: frozenset[tuple[str, str]] = frozenset()
    readable: bool = False

    @property
    def datasets(self) -> list[DatasetEntry]:
        return [entry for entry in self.entries if isinstance(entry, DatasetEntry)]

    @property
    def feeds(self) -> list[FeedEntry]:
        return [entry for entry in self.entries if isinstance(entry, FeedEntry)]

    @property
    def folders(self) -> set[str]:
        return {entry.folder for entry in self.datasets} | {entry.folder for entry in self.feeds}

    @property
    def brokers(self) -> frozenset[str]:
        return frozenset(full_name(entry) for entry in self.entries if isinstance(entry, BrokerEntry))

    @property
    def channels(self) -> list[ChannelEntry]:
        return [entry for entry in self.entries if isinstance(entry, ChannelEntry)]


class Inspection:
    """Inspects a data folder, and the storage of its datasets. `layouts` are the expected schemas of the stores of
    catalog, channels and brokers.
    """

    def __init__(
        self,
        data: Path,
        layouts: Mapping[str, StoreLayout],
        storage: StorageFolder | None = None,
        *,
        deep: bool,
        on_progress: OnInspected,
    ) -> None:
        self._data = data
        self._storage = storage or LocalFolder(data)
        self._datasets = self._storage.child(DATASETS)
        self._intake = LocalFolder(data / INTAKE)
        self._layouts = layouts
        self._deep = deep
        self._on_progress = on_progress
        self._report = InspectionReport(data, is_quick=not deep)
        self._unreadable: list[Finding] = []

    def run(self) -> InspectionReport:
        if not self._data.is_dir():
            raise NotFoundError(f"there is no data folder {self._data}", hint="choose it with --data")
        catalog = self._read_catalog()
        brokers = find_broker_stores(self._data, catalog.brokers if catalog.readable else None)
        steps: list[tuple[str, Callable[[], list[Finding]]]] = [
            ("catalog", lambda: self._store(self._data / CATALOG, "catalog", "the catalog")),
            ("channels", lambda: self._store(self._data / CHANNELS, "channels", "the channels' store")),
            *((path.name, lambda path=path: self._store(path, "broker", name_broker_store(path))) for path in brokers),
            *((_name_for_people(entry), lambda entry=entry: self._dataset(entry)) for entry in catalog.datasets),
            *((_name_for_people(entry), lambda entry=entry: self._feed(entry)) for entry in catalog.feeds),
            *((folder.name, lambda folder=folder: self._folder(folder)) for folder in self._folders_alone(catalog)),
            (CLOCK, lambda: confirm_findings(self._clock)),
            ("channels' rows", lambda: confirm_findings(self._channels)),
            ("lost", lambda: [*confirm_findings(self._find_unexplained), *self._lost()]),
        ]  # fmt: skip
        findings = list(self._unreadable)
        for index, (what, step) in enumerate(steps):
            self._on_progress(index, len(steps), what)
            findings += step()
        self._on_progress(len(steps), len(steps), "")
        # Drop findings about datasets and feeds that were dropped meanwhile.
        after = self._read_catalog()
        dropped = catalog.folders - after.folders if after.readable else set()
        self._report.findings = [finding for finding in findings if dropped.isdisjoint(str(finding.path).split("/"))]
        return self._report

    def _read_catalog(self) -> _Known:
        path = self._data / CATALOG
        entries: list[CatalogEntry] = []
        self._unreadable = []
        try:
            if not path.exists():
                return _Known()
            rows, removals = read_catalog(path)
        except (sqlite3.DatabaseError, OSError):
            return _Known()  # the inspection of the store reports the problem
        except ValueError as error:
            self._unreadable.append(Finding("damaged", path, "the catalog", f"an entry cannot be read: {error}"))
            return _Known()
        for row in rows:
            try:
                entries.append(entry_from_json(row))
            except (TocsinError, KeyError, TypeError, ValueError) as error:
                problem = f"the entry of the {row.kind} {full_name(row)} cannot be read: {error}"
                self._unreadable.append(Finding("damaged", path, "the catalog", problem))
        return _Known(entries, frozenset((removal.kind, removal.name) for removal in removals), readable=True)

    # ------------------------------------------------------------ stores

    def _store(self, path: Path, kind: str, what: str) -> list[Finding]:
        if path.exists():
            self._report.stores += 1
            self._report.size_bytes += path.stat().st_size
        remedy = broker_remedy(path) if kind == "broker" else cluster_remedy(path)
        layout = self._layouts[kind]
        return confirm_findings(lambda: inspect_store(path, layout, what, remedy, self._find_evidence(kind)))

    def _find_evidence(self, kind: str) -> StoreEvidence:
        """Finds out from the other files of the folder whether this store existed and had content."""
        has_data = any(list_content(folder) for folder in (self._datasets, self._intake))
        match kind:
            case "catalog":
                # A cluster creates its channel store after its catalog.
                has_data = has_data or has_content(self._data / CHANNELS)
                return StoreEvidence(existed=has_data, had_content=has_data)
            case "channels":
                # The inspection of the channels' rows names the channels of a missing store.
                return StoreEvidence(existed=False, had_content=has_data or bool(self._read_catalog().entries))
            case _:
                return StoreEvidence(existed=True, had_content=True)

    def _channels(self) -> Iterator[Finding]:
        """Finds channels without rows, and datasets that end before a commit that a channel has read."""
        path = self._data / CHANNELS
        catalog = self._read_catalog()
        try:
            vectors = read_channel_vectors(path) if path.exists() else {}
        except (sqlite3.DatabaseError, OSError):
            return  # the inspection of the store reports the problem
        except ValueError as error:
            yield Finding("damaged", path, "the channels' store", f"a channel's vector cannot be read: {error}")
            return
        newest_read: dict[str, tuple[int, str]] = {}
        for entry in catalog.channels:
            if entry.channel_id not in vectors:
                problem = f"has no rows of the channel {_name_for_people(entry)}"
                yield Finding("damaged", path, _name_for_people(entry), problem)
            for folder, number in vectors.get(entry.channel_id, {}).items():
                newest_read[folder] = max(newest_read.get(folder, (0, "")), (number, _name_for_people(entry)))
        # Read the datasets after the vectors, because datasets grow.
        for dataset in catalog.datasets:
            number, channel = newest_read.get(dataset.folder, (0, ""))
            table = self._datasets.child(dataset.folder)
            newest = read_commit_number(table) if number else None
            if newest is not None and newest < number:
                problem = f"ends at commit {newest}, and the {channel} has read up to commit {number}"
                yield Finding("damaged", log_of(table).url, _name_for_people(dataset), problem, _NEWEST_GONE)

    def _clock(self) -> Iterator[Finding]:
        path = self._data / CLOCK
        try:
            parse_record(path.read_bytes())
        except FileNotFoundError:
            return
        except ValueError as error:
            yield Finding("damaged", path, "the record of the clock", f"cannot be read: {error}", _CLOCK_REMEDY)
        except OSError as error:
            yield unreadable_finding(error, path, "the record of the clock")

    # ------------------------------------------------------------ folders

    def _dataset(self, entry: DatasetEntry) -> list[Finding]:
        self._report.datasets += 1
        inspection = DatasetInspection(
            self._datasets.child(entry.folder), _name_for_people(entry), self._report, deep=self._deep
        )
        return [*confirm_findings(inspection.find_damage), *inspection.list_set_aside()]

    def _feed(self, entry: FeedEntry) -> list[Finding]:
        self._report.feeds += 1
        folder, what = self._data / INTAKE / entry.folder, _name_for_people(entry)
        options = feed_options(dict(entry.options))
        if options.files is not None:
            return confirm_findings(lambda: inspect_notes(folder, what, landed=self._furthest_position(entry)))

        def look() -> Iterator[Finding]:
            # The log's begin moves up when records have landed, and its end grows: so read first the begin, then the
            # positions, then the end.
            first = segments.find_first(folder)
            yield from inspect_positions(folder, what, first, self._positions(entry))
            yield from inspect_log(folder, what, begun=entry.started, landed=self._furthest_position(entry))
            if options.polling is not None:
                yield from inspect_seen_items(folder, what)

        return confirm_findings(look)

    def _folders_alone(self, known: _Known) -> list[StorageFolder]:
        """If the catalog is unreadable, lists the folders as they are."""
        return [] if known.readable else list_content(self._datasets) + list_content(self._intake)

    def _folder(self, folder: StorageFolder) -> list[Finding]:
        path = self._intake.path / folder.name
        if folder != self._intake.child(folder.name):
            self._report.datasets += 1
            return confirm_findings(
                DatasetInspection(folder, f"dataset {folder.name}", self._report, deep=self._deep).find_damage
            )
        self._report.feeds += 1
        if not any(path.glob("*.log")):
            return confirm_findings(lambda: inspect_notes(path, f"feed {path.name}"))
        return confirm_findings(lambda: inspect_log(path, f"feed {path.name}", begun=True, landed=0))

    def _furthest_position(self, feed: FeedEntry) -> int:
        """Returns the furthest position of the feed's datasets."""
        return max(self._position(feed, feed.rejected) or 0, *self._positions(feed).values(), 0)

    def _positions(self, feed: FeedEntry) -> dict[str, int]:
        """Returns the position of each connected dataset, by name. The dataset of rejected records is not included: it
        records only positions of batches with rejected records."""
        positions = {}
        for connection in feed.connections:
            position = self._position(feed, connection.dataset)
            if position is not None:
                positions[str(connection.dataset)] = max(position, connection.since)
        return positions

    def _position(self, feed: FeedEntry, dataset: Ref) -> int | None:
        folder = next((entry.folder for entry in self._read_catalog().datasets if entry.ref == dataset), None)
        return None if folder is None else read_landed_position(self._datasets.child(folder), feed.folder)

    # ------------------------------------------------------------ unknown and lost files

    def _find_unexplained(self) -> Iterator[Finding]:
        catalog = self._read_catalog()
        if not catalog.entries:
            return  # the catalog itself is missing, damaged or empty
        for parent, kind, owned in (
            (self._datasets, DATASET, {entry.folder for entry in catalog.datasets}),
            (self._intake, "feed", {entry.folder for entry in catalog.feeds}),
        ):
            lost = self._storage.child(LOST).url if kind == DATASET else self._data / LOST
            for folder in list_content(parent):
                if folder.name not in owned and (kind, folder.name) not in catalog.removed:
                    remedy = f"{_OLDER_CATALOG}; the start moves this to {lost} ({_SECTION})"
                    yield Finding("note", folder.url, describe(folder, kind), "is not known to the catalog", remedy)

    def _lost(self) -> Iterator[Finding]:
        for folder in self._list_lost():
            kind = folder.name.split("-")[1] if folder.name.count("-") > 1 else ""
            remedy = "remove it if unneeded"
            if not folder.name.endswith(CLOCK):
                remedy = f"{_OLDER_CATALOG}, and move this back ({_SECTION}); if it is unneeded, remove it"
            problem = "was set aside"
            if kind == TAIL:
                problem, remedy = "was cut off the end of a feed's log, because it failed its check", _TAIL_REMEDY
            yield Finding("note", folder.url, describe(folder, kind), problem, remedy)

    def _list_lost(self) -> list[StorageFolder]:
        places: list[StorageFolder] = [LocalFolder(self._data)]
        if self._storage != places[0]:
            places.append(self._storage)
        return [lost.child(name) for place in places for lost in [place.child(LOST)] for name in lost.list_children()]


_SECTION = 'see "Damage, and what was set aside" in docs/operations.md'
_OLDER_CATALOG = "the catalog may be older than the data: put the newer one in place before you start"
_TAIL_REMEDY = (
    "if records are missing that the feed had acknowledged, publish them again: most of them can be read in this file; "
    "then remove it"
)
_CLOCK_REMEDY = (
    "set the machine's clock right, if it is not, and start the cluster: it sets the file aside and begins a new record"
)
_NEWEST_GONE = (
    "bring the newest entries of its log back from a copy of the disk before the cluster starts, or restore a backup "
    "(tocsin restore); a start goes on without these commits"
)


def _name_for_people(entry: DatasetEntry | FeedEntry | ChannelEntry) -> str:
    return f"{entry.ref.kind} {full_name(entry)}"


_RESTORE: Final = "restore a backup into a new folder (tocsin restore BACKUP --data NEW)"
# Both files of a broker's store that outlive the store itself if somebody deletes only that.
_TRACES: Final = (".lock", "-wal")


@dataclass(frozen=True, slots=True)
class StoreEvidence:
    """What the rest of the data folder says about a store: whether it existed, and whether it had content."""

    existed: bool
    had_content: bool


def inspect_store(
    path: Path, layout: StoreLayout, what: str, remedy: str, evidence: StoreEvidence
) -> Iterator[Finding]:
    try:
        if not path.exists():
            if evidence.existed:
                yield Finding("damaged", path, what, "is missing, and there are data", remedy)
        elif path.stat().st_size == 0:
            # A store is empty only for a moment, while it is created. SQLite deletes the log of an empty store when it
            # opens the store: so a log beside it is content that can still be saved.
            if evidence.had_content or _has_log(path):
                yield Finding("damaged", path, what, "is empty (0 bytes), and there are data", remedy)
            else:
                yield Finding("note", path, what, "is empty (0 bytes): its creation was interrupted", _NEVER_USED)
        else:
            for problem in find_problems(path, layout):
                yield Finding("damaged", path, what, problem, remedy)
    except OSError as error:
        yield unreadable_finding(error, path, what)


def find_broker_stores(data: Path, known_brokers: frozenset[str] | None) -> list[Path]:
    """Lists the brokers' stores, also those that are missing: a broker leaves a lock file beside its store, so the
    broker ran in this folder. `known_brokers` are those of the catalog, or None if there is no readable catalog. A
    broker that the catalog has forgotten needs no store any more."""
    stores = set(data.glob(PATTERN))
    for suffix in _TRACES:
        for trace in data.glob(PATTERN + suffix):
            broker = broker_of(trace.name.removesuffix(suffix))
            if known_brokers is None or broker in known_brokers:
                stores.add(data / file_of(broker))
    return sorted(stores)


def has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def name_broker_store(path: Path) -> str:
    return f"the store of the broker {broker_of(path.name)}"


def cluster_remedy(path: Path) -> str:
    """Says how to bring the catalog or the channel store back."""
    return f"stop the cluster and put {path.name} back together with its -wal file, or {_RESTORE}"


def broker_remedy(path: Path) -> str:
    """Says how to bring a broker's store back."""
    return (
        f"stop the broker, move {path.name} and its -wal file away, and put copies of both back or restore a "
        f"backup (tocsin broker restore BACKUP --data {path.parent}; see docs/broker.md); to go on without its "
        f"subscribers, remove {path.name} and {path.name}.lock"
    )


def _has_log(path: Path) -> bool:
    return has_content(path.with_name(f"{path.name}-wal"))


_NEVER_USED = f"if this folder was in use before, {_RESTORE}; else start again, which completes the file"
