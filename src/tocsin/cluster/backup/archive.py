"""The two forms of a backup: a folder, or one tar file. Both are written whole, synced, and read back in any order.

A backup is read back before it counts, so that a disk that lies is noticed while the data are still there.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, Protocol
from uuid import uuid4

from tocsin.cluster.backup.manifest import DATASETS, MANIFEST, MANIFEST_LIMIT_BYTES, FileChecksum, Manifest, is_inside
from tocsin.durable_files import sync_file, sync_folder, sync_open
from tocsin.storage.interface import StorageFolder
from tocsin.storage.local import DRAFT_SUFFIX
from tocsin.wire.errors import NotFoundError, StoreError

TAR: Final = ".tar"
_CHUNK_BYTES: Final = 1 << 20
_UNLIMITED: Final = 1 << 62

# Called with the number of bytes just copied; may raise to stop.
Passed = Callable[[int], None]


def copy(source: BinaryIO, into: BinaryIO | None, passed: Passed, limit_bytes: int = _UNLIMITED) -> tuple[int, str]:
    """Copies (or only reads) to the end or the limit. Returns size and SHA-256 of the bytes."""
    digest, size_bytes = hashlib.sha256(), 0
    while chunk := source.read(min(_CHUNK_BYTES, limit_bytes - size_bytes)):
        digest.update(chunk)
        size_bytes += len(chunk)
        if into is not None:
            into.write(chunk)
        passed(len(chunk))
    return size_bytes, digest.hexdigest()


def create(path: Path) -> BinaryIO:
    """Creates a file that only its owner may read: the catalog contains the hashes of tokens."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def sync(file: BinaryIO) -> None:
    sync_open(file)
    # Drop the page cache, so that reading the file back reads the disk.
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# ---------------------------------------------------------------- writing


class _Sink(Protocol):
    def add(self, name: str, source: BinaryIO, size_bytes: int, passed: Passed) -> FileChecksum: ...


@contextmanager
def create_archive(path: Path, *, tar: bool) -> Iterator[_Sink]:
    """Creates an archive. All of it is on the disk when the block ends without an error."""
    if not tar:
        path.mkdir(mode=0o700)
        yield _FolderSink(path)
        sync_tree(path)
        return
    with create(path) as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
            yield _TarSink(archive)
        sync(file)


class _FolderSink:
    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, name: str, source: BinaryIO, size_bytes: int, passed: Passed) -> FileChecksum:  # noqa: ARG002
        target = self._path / name
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with create(target) as file:
            checksum = FileChecksum(name, *copy(source, file, passed))
            sync(file)
        return checksum


class _TarSink:
    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar

    def add(self, name: str, source: BinaryIO, size_bytes: int, passed: Passed) -> FileChecksum:
        member = tarfile.TarInfo(name)
        member.size, member.mode = size_bytes, 0o600
        watched = _Watched(source, passed)
        self._tar.addfile(member, watched)
        return FileChecksum(name, size_bytes, watched.digest.hexdigest())


class _Watched:
    """A file that reports and hashes what is read from it."""

    def __init__(self, file: BinaryIO, passed: Passed) -> None:
        self._file = file
        self._passed = passed
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        chunk = self._file.read(size)
        self.digest.update(chunk)
        self._passed(len(chunk))
        return chunk


def sync_tree(folder: Path) -> None:
    """Syncs the folder and its subfolders, so that all names in them are on the disk."""
    for subfolder, _, _ in os.walk(folder):
        sync_folder(subfolder)
    sync_file(folder.parent)


# ---------------------------------------------------------------- reading


class Archive(Protocol):
    """An opened backup. Its content is trusted only as far as the manifest's checksums match."""

    def open(self, name: str) -> BinaryIO:
        """Opens a file; KeyError if it is missing."""


@contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    if path.is_dir():
        yield _Folder(path)
    elif path.is_file():
        try:
            with tarfile.open(path, "r:") as tar:
                yield _Tar(tar, path)
        except tarfile.TarError as error:
            raise StoreError(f"the backup {path} is incomplete or not a backup: {error}") from None
    else:
        raise NotFoundError(f"there is no backup {path}")


class _Folder:
    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, name: str) -> BinaryIO:
        try:
            # Refuse links: a link could lead anywhere.
            if any(
                part.is_symlink() for part in (self._path / name, *(self._path / name).parents) if part > self._path
            ):
                raise StoreError(f"the backup {self._path} holds {name} as a link")
            file = (self._path / name).open("rb")
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise KeyError(name) from None
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            raise KeyError(name)
        return file


class _Tar:
    def __init__(self, tar: tarfile.TarFile, path: Path) -> None:
        self._tar = tar
        self._members: dict[str, tarfile.TarInfo] = {}
        for member in tar:
            if not is_inside(member.name) or not member.isreg() or member.name in self._members:
                raise StoreError(f"the backup {path} holds what no backup does: {member.name!r}")
            self._members[member.name] = member

    def open(self, name: str) -> BinaryIO:
        file = self._tar.extractfile(self._members[name])
        assert file is not None, "only regular files were let in"
        return file  # type: ignore[return-value]


def read_manifest(archive: Archive, path: Path) -> Manifest:
    try:
        with archive.open(MANIFEST) as file:
            return Manifest.from_bytes(file.read(MANIFEST_LIMIT_BYTES))
    except KeyError:
        raise StoreError(f"{path} is no backup, or an incomplete one: it has no {MANIFEST}") from None


def check_files(
    archive: Archive,
    path: Path,
    manifest: Manifest,
    into: Path | None,
    passed: Passed,
    *,
    storage: StorageFolder | None = None,
) -> None:
    """Reads every file that the manifest names, and raises for the first that differs from what was written.

    With `into`, a new folder, it also copies them there; with `storage` those of datasets go there instead.
    """
    for expected in manifest.files:
        try:
            with archive.open(expected.path) as file:
                if into is None:
                    _copy_whole(file, None, expected, path, passed)
                elif storage is not None and expected.path.startswith(f"{DATASETS}/"):
                    _upload(file, storage, expected, path, passed)
                else:
                    target = into / expected.path
                    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    with create(target) as copied:
                        _copy_whole(file, copied, expected, path, passed)
                        sync(copied)
        except KeyError:
            raise StoreError(f"the backup {path} is incomplete: {expected.path} is missing") from None


def _upload(file: BinaryIO, storage: StorageFolder, expected: FileChecksum, path: Path, passed: Passed) -> None:
    *parents, name = expected.path.split("/")
    folder = storage
    for parent in parents:
        folder = folder.child(parent)
    folder.make()
    with folder.create(f"_{uuid4().hex}{DRAFT_SUFFIX}") as draft:
        _copy_whole(file, draft.sink, expected, path, passed)
        draft.publish(name)
    folder.sync()


def _copy_whole(file: BinaryIO, into: BinaryIO | None, expected: FileChecksum, path: Path, passed: Passed) -> None:
    # Read at most one byte more than expected: a hostile archive could unpack to any size.
    actual = copy(file, into, passed, expected.size_bytes + 1)
    if actual != (expected.size_bytes, expected.sha256):
        raise StoreError(f"the backup {path} is damaged: {expected.path} is not as it was written")
