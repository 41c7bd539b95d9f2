"""A new table for each test: on this machine or, in the modules that say EVERY_STORAGE, on each kind of storage."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.s3_server import S3Server
from tests.support.small_tables import KEYS, SCHEMA
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.storage.interface import StorageFolder
from tocsin.storage.local import LocalFolder


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "folder" in metafunc.fixturenames and getattr(metafunc.module, "EVERY_STORAGE", False):
        kinds = ["file", pytest.param("s3", marks=pytest.mark.cluster)]
        metafunc.parametrize("folder", kinds, indirect=True)


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> StorageFolder:
    if getattr(request, "param", "file") == "file":
        return LocalFolder(tmp_path / "d")
    server: S3Server = request.getfixturevalue("s3_server")
    return server.new_folder()


@pytest.fixture
def table(folder: StorageFolder) -> DatasetTable:
    return DatasetTable.create(folder, SCHEMA, KEYS)
