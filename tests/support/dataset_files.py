"""The files of a dataset on this machine, for tests that read, damage or remove them."""

from __future__ import annotations

from pathlib import Path

from tocsin.pipeline.datasets.delta import log_files
from tocsin.storage.interface import StorageFolder
from tocsin.storage.local import LocalFolder


def path_of(folder: StorageFolder) -> Path:
    assert isinstance(folder, LocalFolder)
    return folder.path


def entry_path(folder: StorageFolder, version: int) -> Path:
    return path_of(folder) / log_files.LOG_FOLDER / log_files.entry_name(version)


def checkpoint_path(folder: StorageFolder, version: int) -> Path:
    return path_of(folder) / log_files.LOG_FOLDER / log_files.checkpoint_name(version)
