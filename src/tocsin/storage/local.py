"""A folder on this machine. What is written survives a power cut: content and names are synced.

A commit is a link: the file is written and synced under a name that readers ignore, and gets its real name by a link,
which fails if there is one of that name.
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa

from tocsin.durable_files import sync_file, sync_folder, sync_open
from tocsin.storage.interface import Draft, StorageFolder, StoredFile

# The file system has no links, or not between these two folders.
NO_LINKS: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP})
DRAFT_SUFFIX: Final = ".tmp"


@dataclass(frozen=True, slots=True)
class LocalFolder:
    """See the promises of `StorageFolder`."""

    path: Path

    has_conditional_put = True
    delta_options = None

    def __str__(self) -> str:
        return self.url

    @property
    def url(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def delta_uri(self) -> str:
        return str(self.path)

    def spark_path(self, name: str = "") -> str:
        return f"{self.path}/{name}" if name else str(self.path)

    def locate(self, name: str) -> str:
        return f"{self.path}/{name}"

    def child(self, name: str) -> LocalFolder:
        return LocalFolder(self.path / name)

    # ---- looking

    def exists(self) -> bool:
        return self.path.is_dir()

    def list_names(self) -> list[str]:
        try:
            with os.scandir(self.path) as entries:
                return [entry.name for entry in entries if entry.is_file()]
        except FileNotFoundError:
            return []

    def list_files(self) -> list[StoredFile]:
        files = []
        for name in self.list_names():
            with suppress(FileNotFoundError):  # removed since
                about = (self.path / name).stat()
                files.append(StoredFile(name, about.st_size, about.st_mtime_ns // 1000))
        return files

    def list_children(self) -> list[str]:
        try:
            return sorted(path.name for path in self.path.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def size_of(self, name: str) -> int | None:
        try:
            return (self.path / name).stat().st_size
        except FileNotFoundError:
            return None

    def total_size(self) -> tuple[int, int]:
        files = [child for child in self.path.rglob("*") if child.is_file()] if self.path.is_dir() else [self.path]
        size_bytes = 0
        for file in files:
            with suppress(OSError):
                size_bytes += file.stat().st_size
        return len(files), size_bytes

    # ---- reading

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def open_input(self, name: str) -> pa.NativeFile:
        return pa.OSFile(self.locate(name), "rb")

    # ---- changing

    def make(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        sync_folder(self.path.parent)

    @contextmanager
    def create(self, draft_name: str) -> Iterator[Draft]:
        draft = _LocalDraft(self.path, draft_name)
        try:
            yield draft
        finally:
            draft.end()

    def put(self, name: str, content: bytes) -> None:
        draft = self._write_draft(content)
        try:
            draft.rename(self.path / name)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise

    def put_if_absent(self, name: str, content: bytes) -> None:
        draft = self._write_draft(content)
        try:
            _link_or_rename(draft, self.path / name)
        finally:
            draft.unlink(missing_ok=True)

    def _write_draft(self, content: bytes) -> Path:
        draft = self.path / f"_{uuid.uuid4().hex}{DRAFT_SUFFIX}"
        try:
            with draft.open("xb") as file:
                file.write(content)
                sync_open(file)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        return draft

    def sync_file(self, name: str) -> None:
        sync_file(self.path / name)

    def sync(self) -> None:
        sync_folder(self.path)

    def move_file(self, name: str, to: StorageFolder, new_name: str) -> None:
        assert isinstance(to, LocalFolder), "both are folders of one storage"
        to.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.path / name).rename(to.path / new_name)
        sync_folder(to.path)
        sync_folder(to.path.parent)
        sync_folder(self.path)

    def move_to(self, target: StorageFolder) -> None:
        assert isinstance(target, LocalFolder), "both are folders of one storage"
        self.path.rename(target.path)
        sync_folder(target.path.parent)
        sync_folder(self.path.parent)

    def remove(self, names: Iterable[str]) -> int:
        removed = 0
        for name in names:
            with suppress(FileNotFoundError):
                (self.path / name).unlink()
                removed += 1
        return removed

    def remove_all(self) -> bool:
        shutil.rmtree(self.path, ignore_errors=True)
        return not self.path.exists()

    def hold(self, name: str, target: Path) -> bool:
        source = self.path / name
        try:
            os.link(source, target)
        except FileExistsError:
            return True
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            shutil.copyfile(source, target)
        return True


@dataclass(slots=True)
class _LocalDraft:
    folder: Path
    name: str
    sink: pa.NativeFile = field(init=False)
    is_published: bool = False

    def __post_init__(self) -> None:
        self.sink = pa.OSFile(f"{self.folder}/{self.name}", "wb")

    def read_back(self) -> pa.NativeFile:
        self.sink.close()
        return pa.OSFile(f"{self.folder}/{self.name}", "rb")

    def publish(self, name: str) -> None:
        self.sink.close()
        (self.folder / self.name).rename(self.folder / name)
        self.is_published = True
        try:
            sync_file(self.folder / name)
        except BaseException:
            (self.folder / name).unlink(missing_ok=True)
            raise

    def end(self) -> None:
        if not self.sink.closed:
            self.sink.close()
        if not self.is_published:
            (self.folder / self.name).unlink(missing_ok=True)


def _link_or_rename(draft: Path, target: Path) -> None:
    try:
        os.link(draft, target)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        # One process at a time has the data folder, so nobody writes this name in between.
        if target.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        draft.rename(target)
