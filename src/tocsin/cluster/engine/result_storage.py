"""Where Spark's tasks write large results: a folder that the executors and this process reach by the same URL."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa


class ResultFile(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...


class ResultStorage(Protocol):
    """One folder. A folder that does not exist is empty."""

    def spark_path(self, name: str = "") -> str:
        """The path of a file, or of the folder, for Spark."""

    def child(self, name: str) -> ResultStorage: ...

    def list_files(self) -> Sequence[ResultFile]: ...

    def list_children(self) -> Sequence[str]:
        """The names of files and child folders."""

    def open_input(self, name: str) -> pa.NativeFile: ...

    def remove_all(self) -> bool:
        """Removes the folder with its content."""


@dataclass(frozen=True, slots=True)
class LocalResultFile:
    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LocalResultStorage:
    """A folder on this machine, for executors that are threads of the driver."""

    path: Path

    def spark_path(self, name: str = "") -> str:
        return str(self.path / name)

    def child(self, name: str) -> LocalResultStorage:
        return LocalResultStorage(self.path / name)

    def list_files(self) -> list[LocalResultFile]:
        files = []
        for name in self.list_children():
            with suppress(FileNotFoundError):  # removed since
                if (self.path / name).is_file():
                    files.append(LocalResultFile(name, (self.path / name).stat().st_size))
        return files

    def list_children(self) -> list[str]:
        try:
            return sorted(os.listdir(self.path))  # noqa: PTH208 - the names alone
        except FileNotFoundError:
            return []

    def open_input(self, name: str) -> pa.NativeFile:
        return pa.OSFile(str(self.path / name), "rb")

    def remove_all(self) -> bool:
        shutil.rmtree(self.path, ignore_errors=True)
        return not self.path.exists()
