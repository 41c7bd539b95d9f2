"""The files below one URL. What every backend promises is stated here; `tests/contract/storage` holds them to it.

A folder has files and child folders. A file is written once, completely, and is never changed afterwards. So a reader
needs no lock, and a name means one content for ever. The exceptions are small files that `put` replaces as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class StoredFile:
    name: str
    size_bytes: int
    modified_us: int


class Draft(Protocol):
    """A file that nobody sees yet. It is gone when its block ends without `publish`."""

    @property
    def sink(self) -> pa.NativeFile:
        """Takes the content."""

    def read_back(self) -> pa.NativeFile:
        """Closes the sink, and reads what was written."""

    def publish(self, name: str) -> None:
        """Makes the file visible under this name, with its whole content. The content is durable when this returns;
        the name is when `StorageFolder.sync` has returned. The name must be new.
        """


class StorageFolder(Protocol):
    """One folder. Thread-safe. A folder that does not exist is empty.

    A missing file is a FileNotFoundError, any other failure of the storage an OSError. No error, and none of the texts
    that a folder gives, contains a secret of the storage options.
    """

    @property
    def url(self) -> str:
        """For people: a path on this machine, or a URL. It contains no secret."""

    @property
    def name(self) -> str:
        """The last part of the URL."""

    @property
    def has_conditional_put(self) -> bool:
        """Whether `put_if_absent` works. Where it does not, delta-rs makes the commits: it has such a put."""

    @property
    def delta_uri(self) -> str:
        """For `deltalake.DeltaTable`."""

    @property
    def delta_options(self) -> dict[str, str] | None:
        """The storage options for `deltalake.DeltaTable`. They contain secrets."""

    def spark_path(self, name: str = "") -> str:
        """The path of a file, or of the folder, for Spark."""

    def locate(self, name: str) -> str:
        """The path or URL of a file, for people."""

    def child(self, name: str) -> StorageFolder: ...

    # ---- looking

    def exists(self) -> bool:
        """Whether there is such a folder, or anything in it."""

    def list_names(self) -> list[str]:
        """The names of the files, not of child folders, in no order."""

    def list_files(self) -> list[StoredFile]:
        """Like `list_names`, with size and time of modification."""

    def list_children(self) -> list[str]:
        """The names of files and child folders, sorted."""

    def size_of(self, name: str) -> int | None:
        """The size of a file in bytes; None if it does not exist."""

    def total_size(self) -> tuple[int, int]:
        """The number of files in the folder and its child folders, and their bytes."""

    # ---- reading

    def read(self, name: str) -> bytes: ...

    def open_input(self, name: str) -> pa.NativeFile:
        """Opens a file for random access."""

    # ---- changing

    def make(self) -> None:
        """Creates the folder, durably, if it is missing and the storage knows folders."""

    def create(self, draft_name: str) -> AbstractContextManager[Draft]:
        """Begins a file. A crash may leave it under the draft's name, and a reader must not look at that."""

    def put(self, name: str, content: bytes) -> None:
        """Writes a small file or replaces it: a reader sees the old content or the new. Durable after `sync`."""

    def put_if_absent(self, name: str, content: bytes) -> None:
        """Writes a small file unless there is one of this name (FileExistsError). Of two calls at the same moment one
        succeeds. Durable after `sync`. After another error the file is there with its whole content, or not at all.
        """

    def sync_file(self, name: str) -> None:
        """Makes the content of a file durable that another program wrote."""

    def sync(self) -> None:
        """Makes durable which names the folder has."""

    def move_file(self, name: str, to: StorageFolder, new_name: str) -> None:
        """Moves a file to another folder of the same storage; durable when it returns."""

    def move_to(self, target: StorageFolder) -> None:
        """Moves the folder with all its content to a new place in the same storage; durable when it returns. After a
        crash every file is at the one place or the other, or at both.
        """

    def remove(self, names: Iterable[str]) -> int:
        """Removes the files that exist, and returns their number. Durable after `sync`."""

    def remove_all(self) -> bool:
        """Removes the folder with its content; returns whether it is gone. Durable after `sync` of the parent."""

    def hold(self, name: str, target: Path) -> bool:
        """Gives the file a second name on this machine, so that nobody can remove its content. Returns False if this
        storage cannot do that without copying.
        """


def copy_in_pieces(source: pa.NativeFile, into: pa.NativeFile, piece_bytes: int = 4 << 20) -> int:
    """Copies to the end. Returns the number of bytes."""
    size_bytes = 0
    while piece := source.read(piece_bytes):
        into.write(piece)
        size_bytes += len(piece)
    return size_bytes


# pyarrow and delta-rs report failures of an object store as texts.
_REMOTE_TEXTS: Final = ("AWS Error", "curlCode", "Generic S3 error", "error sending request")


def is_unreachable(error: BaseException) -> bool:
    """Whether an error says that the storage did not answer rightly, and nothing of the file's content."""
    return (isinstance(error, OSError) and error.errno is not None) or is_remote_failure(error)


def is_remote_failure(error: BaseException) -> bool:
    """Whether an object store did not answer, or refused the request."""
    return not isinstance(error, FileNotFoundError) and any(text in str(error) for text in _REMOTE_TEXTS)
