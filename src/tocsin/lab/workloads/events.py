"""A workload as arrays: the external events of a broker, in order, saved once and played to every policy.

The events do not depend on any policy, so one file serves every policy and size. They are columns, because all of them
as Python numbers would need a gigabyte.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tocsin.lab.atomic_files import AtomicFile
from tocsin.rules.model.cursors import InterestId
from tocsin.wire.errors import InputError

_FORMAT: Final = 1
_CHUNK: Final = 100_000
_COLUMNS: Final = ("at_s", "kind", "subscriber", "interest", "size_bytes")


class WorkloadEventKind(IntEnum):
    """The kinds of events. At the same moment the lower number comes first: UNSUBSCRIBED before SUBSCRIBED."""

    UNSUBSCRIBED = 0
    SUBSCRIBED = 1
    LOGGED_OUT = 2
    LOGGED_IN = 3
    PRODUCED = 4


@dataclass(frozen=True, slots=True)
class WorkloadEvent:
    """One event. `subscriber` or `interest` is -1 if it does not apply, and only PRODUCED has a size."""

    at_s: float
    kind: WorkloadEventKind
    subscriber: int
    interest: InterestId
    size_bytes: int


@dataclass(frozen=True, slots=True)
class WorkloadEvents:
    """Columns of equal length, ordered by time and kind. `about` says how they were made."""

    at_s: NDArray[np.float64]
    kind: NDArray[np.uint8]
    subscriber: NDArray[np.int32]
    interest: NDArray[np.int32]
    size_bytes: NDArray[np.int32]
    about: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.at_s)

    def rows(self, begin: int = 0) -> Iterator[tuple[float, int, int, InterestId, int]]:
        """Yields the rows from `begin` on, a chunk at a time: all rows as Python numbers would need a gigabyte."""
        for start in range(begin, len(self), _CHUNK):
            part = slice(start, start + _CHUNK)
            yield from zip(*(getattr(self, name)[part].tolist() for name in _COLUMNS), strict=True)

    def __iter__(self) -> Iterator[WorkloadEvent]:
        for at_s, kind, subscriber, interest, size_bytes in self.rows():
            yield WorkloadEvent(at_s, WorkloadEventKind(kind), subscriber, interest, size_bytes)

    def of(self, kind: WorkloadEventKind) -> NDArray[np.bool_]:
        """Returns a mask of the events of one kind."""
        return np.asarray(self.kind == kind)

    def save(self, path: Path) -> None:
        """Saves the events atomically. The same events give the same bytes."""
        header = json.dumps({"events": _FORMAT, **self.about}, sort_keys=True)
        with AtomicFile(path) as new, new.open("wb") as file:
            np.savez(
                file, allow_pickle=False, about=np.array(header), **{name: getattr(self, name) for name in _COLUMNS}
            )


def load(path: Path) -> WorkloadEvents:
    """Loads the events of `save`. Raises `InputError` for anything else."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            about = json.loads(str(file["about"]))
            if about.pop("events") != _FORMAT:
                raise InputError(f"{path}: events of a newer version")
            return WorkloadEvents(**{name: file[name] for name in _COLUMNS}, about=about)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except (ValueError, KeyError, EOFError, NotImplementedError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: not events of the lab: {error}") from None


def load_or_make_events(folder: Path | None, name: str, make: Callable[[], WorkloadEvents]) -> WorkloadEvents:
    """Returns the events from the folder if an earlier run saved them whole; otherwise makes and saves them."""
    if folder is None:
        return make()
    path = folder / f"{name}.npz"
    try:
        return load(path)
    except InputError:
        make().save(path)
        return load(path)


def in_order(
    parts: list[tuple[WorkloadEventKind, Mapping[str, NDArray[Any]]]], about: Mapping[str, Any]
) -> WorkloadEvents:
    """Merges parts of one kind each into one set of events. Equal events keep the order of the parts."""
    at_s = np.concatenate([part["at_s"] for _, part in parts])
    kind = np.concatenate([np.full(len(part["at_s"]), part_kind, dtype=np.uint8) for part_kind, part in parts])
    order = np.lexsort((kind, at_s))

    def column(name: str, missing: int) -> NDArray[np.int32]:
        columns = [part.get(name, np.full(len(part["at_s"]), missing)).astype(np.int32) for _, part in parts]
        return np.asarray(np.concatenate(columns)[order])

    return WorkloadEvents(
        at_s[order], kind[order], column("subscriber", -1), column("interest", -1), column("size_bytes", 0), about
    )
