"""Inspects the store files of a data folder: SQLite's own check, and whether a missing or empty file had content.

A missing store looks like a new folder. The traces of its use elsewhere (datasets, a lock file, a log) tell the two
apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tocsin.cluster.data_folder.inspection.findings import Finding, unreadable_finding
from tocsin.store.broker.files import PATTERN, broker_of, file_of
from tocsin.store.sqlite.file import StoreLayout
from tocsin.store.sqlite.inspection import find_problems

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
