"""Which file may hold a key, from memory: 12 bytes per key, whatever the key is.

Sorted runs of (hash, origin) that are merged as they grow, and a small dictionary of the most recent ones. An *origin*
is a number for "the rows that were once put into one file"; a table beside says in which file they lie now, so that a
compaction moves millions of keys by changing one cell per origin. An answer is a candidate: the caller compares keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from tocsin.pipeline.datasets.keys import Hashes, Positions

_GONE: Final = 0  # the origin of keys that were deleted
_RECENT_MAX: Final = 2048
_ORIGINS_MAX: Final = 1 << 16

Origins = npt.NDArray[np.uint32]


class KeyIndex:
    """Not thread-safe: its table's writers take turns."""

    def __init__(self) -> None:
        self._runs: list[tuple[Hashes, Origins]] = []  # each sorted by hash; the largest first
        self._recent: dict[int, int] = {}
        self._file_of: list[str | None] = [None]  # by origin; None: its rows are gone
        self._origins_of: dict[str, list[int]] = {}
        self._gone = 0

    def __len__(self) -> int:
        """How many keys it holds (those of files dropped as a whole are counted until the next merge)."""
        return sum(len(run) for run, _ in self._runs) + len(self._recent) - self._gone

    def add(self, hashed: Hashes, file: str) -> None:
        """Keys that are in none of the files yet are now in this one."""
        if len(hashed) == 0:
            return
        origin = self._origin(file)
        if len(hashed) <= _RECENT_MAX // 8:
            for word in hashed.tolist():
                if word in self._recent:  # two keys with one hash: a run can hold both
                    self._settle_recent()
                self._recent[word] = origin
            if len(self._recent) > _RECENT_MAX:
                self._settle_recent()
        else:
            self._push(np.sort(hashed), np.full(len(hashed), origin, np.uint32))

    def candidates(self, hashed: Hashes) -> dict[str, Positions]:
        """For each file that may hold some of these keys: the positions of those in `hashed`."""
        found: dict[str, list[Positions]] = {}

        def note(origins: Origins, positions: Positions) -> None:
            for origin in np.unique(origins).tolist():
                file = self._file_of[origin]
                if file is not None:
                    found.setdefault(file, []).append(positions[origins == origin])

        for words, origins in self._runs:
            cells, positions = _cells(words, hashed)
            if len(cells):
                note(origins[cells], positions)
        if self._recent:
            hits = [
                (origin, place)
                for place, word in enumerate(hashed.tolist())
                if (origin := self._recent.get(word)) is not None
            ]
            if hits:
                note(np.array([hit[0] for hit in hits], np.uint32), np.array([hit[1] for hit in hits], np.int64))
        return {file: np.unique(np.concatenate(parts)) for file, parts in found.items()}

    def replaced(self, hashed: Hashes, files: Sequence[str], by: str | None) -> None:
        """Keys that lay in `files` (one per key) now lie in `by`; None: they are deleted."""
        if len(hashed) == 0:
            return
        target = self._origin(by) if by is not None else _GONE
        left = dict.fromkeys(range(len(hashed)))
        for words, origins in self._runs:
            cells, positions = _cells(words, hashed)
            for cell, position in zip(cells.tolist(), positions.tolist(), strict=True):
                # Of two keys with one hash in one file either cell will do: they say the same.
                if position in left and self._file_of[origins[cell]] == files[position] and origins[cell] != target:
                    origins[cell] = target
                    self._gone += target == _GONE
                    del left[position]
        words_left = hashed.tolist()
        for position in left:
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
        """All rows of these files lie in another one now; None: they are gone."""
        origins = [origin for source in sources for origin in self._origins_of.pop(source, [])]
        for origin in origins:
            self._file_of[origin] = target
        if target is not None and origins:
            self._origins_of.setdefault(target, []).extend(origins)
        if len(self._file_of) > _ORIGINS_MAX:
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
            last, before = self._runs.pop(), self._runs.pop()
            self._runs.append(self._merged([before, last]))

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
        """Give each file one origin again, so that a long life does not grow the table of origins."""
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
    """Every cell of the sorted `words` that equals one of `hashed`, and which."""
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
