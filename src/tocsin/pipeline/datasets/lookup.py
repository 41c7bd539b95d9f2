"""Finds the rows of keys in a table: by an index in memory or, for a larger table, by reading its key columns.

The index stores a hash and a file for each key, not the key, so that it fits into memory. It therefore only names
candidates; the keys in the file decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from tocsin.pipeline.datasets import keys as keyed
from tocsin.pipeline.datasets.data_files import DataFile, DataFolder
from tocsin.pipeline.datasets.delta.delta_log import DeltaLog
from tocsin.pipeline.datasets.key_index import KeyIndex
from tocsin.pipeline.datasets.keys import Hashes, KeyColumns, KeyPath, Positions

INDEXED_KEYS_MAX: Final = 1 << 26  # above it (800 MB) look-ups read the key columns instead

# Per file that holds some of the requested keys: (positions among those keys, positions in the file).
Located = dict[str, tuple[Positions, Positions]]
# Source files, and the file to which their remaining rows moved; None if no rows remain.
Move = tuple[list[DataFile], DataFile | None]


class KeyLookup:
    """Answers are exact for the last commit of the log. Not thread-safe: the caller holds the table's write lock, and
    reports what each commit did to the keys.
    """

    def __init__(
        self, log: DeltaLog, data: DataFolder, keys: Sequence[KeyPath], *, new: bool, indexed_keys_max: int
    ) -> None:
        self._log = log
        self._data = data
        self._keys = keys
        self._index: KeyIndex | None = KeyIndex() if new else None
        self._indexed_keys_max = indexed_keys_max

    @property
    def loaded(self) -> KeyIndex | None:
        """The index, if it is loaded."""
        return self._index

    def index(self) -> KeyIndex | None:
        """The index, loaded from the files at first need; None if there are too many keys."""
        if self._log.state.rows > self._indexed_keys_max:
            self._index = None
        elif self._index is None:
            index = KeyIndex()
            for name in self._log.state.files:
                index.add(keyed.hashes(self.keys_in(name)), name)
            self._index = index
        return self._index

    def keys_in(self, name: str) -> KeyColumns:
        """The keys of a file's rows."""
        return keyed.of_rows(self._data.read_columns(name, [".".join(path) for path in self._keys]), self._keys)

    def locate(self, keys: KeyColumns, hashed: Hashes) -> Located:
        """Finds these keys; each occurs once."""
        index = self.index()
        everywhere = np.arange(len(hashed))
        candidates = dict.fromkeys(self._log.state.files, everywhere) if index is None else index.candidates(hashed)
        located: Located = {}
        for name, positions in candidates.items():
            key_positions, file_positions = keyed.matches(keys.take(positions), self.keys_in(name))
            if len(key_positions):
                located[name] = positions[key_positions], file_positions
        return located

    def refuse_repeated(self, keys: KeyColumns, hashed: Hashes) -> None:
        """Raises ConflictError if a key occurs twice among these."""
        repeated = keyed.first_repeated(keys, hashed)
        if repeated is not None:
            raise keyed.duplicate(keys, repeated, self._keys, "stands twice among the new records")

    def refuse_present(self, keys: KeyColumns, hashed: Hashes) -> None:
        """Raises ConflictError if one of these keys exists."""
        located = self.locate(keys, hashed)
        if located:
            first = min(int(positions.min()) for positions, _ in located.values())
            raise keyed.duplicate(keys, first, self._keys, "is in the dataset already")

    # ---- effects of a commit

    def appended(self, hashed: Hashes | None, files: Sequence[DataFile]) -> None:
        """New rows are in these files, in the order of `hashed`; None means that their keys were not computed."""
        if self._index is None or hashed is None:
            self._index = None if files else self._index
            return
        begin = 0
        for file in files:
            self._index.add(hashed[begin : begin + file.rows], file.name)
            begin += file.rows

    def rewritten(self, located: Located, hashed: Hashes, moves: Sequence[Move], target: DataFile | None) -> None:
        """The located rows are gone, and the other rows of their files have moved. All keys of `hashed` are in
        `target` now; None means that they are deleted.
        """
        index = self._index
        if index is None:
            return
        known = np.zeros(len(hashed), bool)
        for name, (key_positions, _) in located.items():
            index.replaced(hashed[key_positions], [name] * len(key_positions), target.name if target else None)
            known[key_positions] = True
        for sources, into in moves:
            index.moved([source.name for source in sources], into.name if into else None)
        if target is not None:
            index.add(hashed[~known], target.name)

    def emptied(self) -> None:
        """The table has no rows any more."""
        self._index = KeyIndex()

    def forget(self) -> None:
        """Releases the memory; the next look-up loads the index again."""
        self._index = None
