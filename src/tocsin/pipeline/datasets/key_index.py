"""An index in memory from keys to files: 12 bytes per key of any type.

It consists of sorted runs of (hash, origin), which are merged as they grow, and a small dictionary of the most recent
keys. An *origin* is a number for "the rows that were once put into one file". A separate table says in which file they
are now, so that a compaction moves millions of keys by changing one cell per origin. An answer is a candidate: the
caller compares the keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from tocsin.pipeline.datasets.keys import Hashes, Positions

_GONE: Final = 0  # the origin of deleted keys

Origins = npt.NDArray[np.uint32]


class KeyIndex:
    """Not thread-safe: the caller holds the table's write lock."""

    def __init__(self, *, most_recent: int = 2048, most_origins: int = 1 << 16) -> None:
        self.most_recent = most_recent
        self._most_origins = most_origins
        self._runs: list[tuple[Hashes, Origins]] = []  # each sorted by hash; the largest first
        self._recent: dict[int, int] = {}
        self._file_of: list[str | None] = [None]  # by origin; None: its rows are gone
        self._origins_of: dict[str, list[int]] = {}
        self._gone = 0

    def __len__(self) -> int:
        """The number of keys. Keys of files that were dropped as a whole count until the next merge."""
        return sum(len(run) for run, _ in self._runs) + len(self._recent) - self._gone

    def add(self, hashed: Hashes, file: str) -> None:
        """Adds keys that are in no file yet and are now in this file."""
        if len(hashed) == 0:
            return
        origin = self._origin(file)
        if len(hashed) <= self.most_recent // 8:
            for word in hashed.tolist():
                if word in self._recent:  # two keys with one hash: a run can hold both
                    self._settle_recent()
                self._recent[word] = origin
            if len(self._recent) > self.most_recent:
                self._settle_recent()
        else:
            self._push(np.sort(hashed), np.full(len(hashed), origin, np.uint32))

    def candidates(self, hashed: Hashes) -> dict[str, Positions]:
        """For each file that may hold some of these keys: their positions in `hashed`."""
        positions_by_file: dict[str, list[Positions]] = {}

        def note(origins: Origins, positions: Positions) -> None:
            for origin in np.unique(origins).tolist():
                file = self._file_of[origin]
                if file is not None:
                    positions_by_file.setdefault(file, []).append(positions[origins == origin])

        for words, origins in self._runs:
            cells, positions = _cells(words, hashed)
            if len(cells):
                note(origins[cells], positions)
        if self._recent:
            hits = [
                (origin, position)
                for position, word in enumerate(hashed.tolist())
                if (origin := self._recent.get(word)) is not None
            ]
            if hits:
                note(np.array([hit[0] for hit in hits], np.uint32), np.array([hit[1] for hit in hits], np.int64))
        return {file: np.unique(np.concatenate(parts)) for file, parts in positions_by_file.items()}

    def replaced(self, hashed: Hashes, files: Sequence[str], by: str | None) -> None:
        """Moves keys from `files` (one per key) to `by`; None means that they are deleted."""
        if len(hashed) == 0:
            return
        target = self._origin(by) if by is not None else _GONE
        remaining = dict.fromkeys(range(len(hashed)))
        for words, origins in self._runs:
            cells, positions = _cells(words, hashed)
            for cell, position in zip(cells.tolist(), positions.tolist(), strict=True):
                # If a file has two keys with the same hash, either cell will do: they are equal.
                if (
                    position in remaining
                    and self._file_of[origins[cell]] == files[position]
                    and origins[cell] != target
                ):
                    origins[cell] = target
                    self._gone += target == _GONE
                    del remaining[position]
        words_left = hashed.tolist()
        for position in remaining:
            word = words_left[position]
            origin = self._recent.get(word)
            if origin is not None and self._file_of[origin] == files[position]:
                if target == _GONE:
                    del self._recent[word]
                else:
                    self._recent[word] = target
        if self._gone > 1024 and self._gone > len(self):
            self._merge_all()

    def moved(self, sources: Iterable[str], target: str | None) -> None:
        """Moves all rows of these files to another file; None means that they are gone."""
        origins = [origin for source in sources for origin in self._origins_of.pop(source, [])]
        for origin in origins:
            self._file_of[origin] = target
        if target is not None and origins:
            self._origins_of.setdefault(target, []).extend(origins)
        if len(self._file_of) > self._most_origins:
            self._renumber()

    def _origin(self, file: str) -> int:
        origin = len(self._file_of)
        self._file_of.append(file)
        self._origins_of.setdefault(file, []).append(origin)
        return origin

    def _settle_recent(self) -> None:
        words = np.fromiter(self._recent.keys(), np.uint64, len(self._recent))
        origins = np.fromiter(self._recent.values(), np.uint32, len(self._recent))
        order = np.argsort(words)
        self._recent = {}
        self._push(words[order], origins[order])

    def _push(self, words: Hashes, origins: Origins) -> None:
        self._runs.append((words, origins))
        while len(self._runs) > 1 and len(self._runs[-2][0]) < 2 * len(self._runs[-1][0]):
            last, previous = self._runs.pop(), self._runs.pop()
            self._runs.append(self._merged([previous, last]))

    def _merge_all(self) -> None:
        if self._recent:
            self._settle_recent()
        self._runs = [self._merged(self._runs)] if self._runs else []

    def _merged(self, runs: list[tuple[Hashes, Origins]]) -> tuple[Hashes, Origins]:
        words = np.concatenate([run[0] for run in runs])
        origins = np.concatenate([run[1] for run in runs])
        alive = np.array([file is not None for file in self._file_of])[origins]
        self._gone -= int(np.count_nonzero(origins == _GONE))
        words, origins = words[alive], origins[alive]
        order = np.argsort(words, kind="stable")  # of sorted runs: a merge
        return words[order], origins[order]

    def _renumber(self) -> None:
        """Gives each file a single origin again, so that the table of origins does not grow forever."""
        self._merge_all()
        cells = np.zeros(len(self._file_of), np.uint32)
        file_of: list[str | None] = [None]
        origins_of: dict[str, list[int]] = {}
        for file, origins in self._origins_of.items():
            cells[origins] = len(file_of)
            origins_of[file] = [len(file_of)]
            file_of.append(file)
        self._runs = [(words, cells[origins]) for words, origins in self._runs]
        self._file_of, self._origins_of = file_of, origins_of


def _cells(words: Hashes, hashed: Hashes) -> tuple[Positions, Positions]:
    """The cells of the sorted `words` that equal one of `hashed`, and the position of that hash."""
    first = np.searchsorted(words, hashed, "left")
    hit = np.flatnonzero(words[np.minimum(first, len(words) - 1)] == hashed) if len(words) else np.empty(0, np.int64)
    if len(hit) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    first = first[hit]
    counts = np.searchsorted(words, hashed[hit], "right") - first
    if counts.max() == 1:
        return first, hit
    starts = np.repeat(first - np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
    return starts + np.arange(counts.sum()), np.repeat(hit, counts)
