"""A reader in a process of its own: opens the newest version, lets it grow old, and reads it, again and again.

python -m tests.support.outside_reader FOLDER

A line on its standard input ends it; it prints how many times it read, or fails with what it met.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import deque
from pathlib import Path

import pyarrow.dataset as ds
from deltalake import DeltaTable

# So many versions are opened before the first of them is read.
_OPEN = 8


def main(folder: Path) -> None:
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), ended.set()), daemon=True).start()
    opened: deque[DeltaTable] = deque()
    reads = 0
    print("ready", flush=True)
    while not ended.is_set() or opened:
        if not ended.is_set():
            opened.append(DeltaTable(str(folder)))
        if len(opened) == _OPEN or ended.is_set():
            table = opened.popleft()
            listed = sum(table.get_add_actions(flatten=True).column("num_records").to_pylist())
            rows = ds.dataset(table.file_uris(), format="parquet").count_rows() if table.file_uris() else 0
            assert rows == listed == table.to_pyarrow_table().num_rows, (table.version(), rows, listed)
            assert DeltaTable(str(folder), version=table.version()).file_uris() == table.file_uris()
            reads += 1
    print(json.dumps({"reads": reads}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
