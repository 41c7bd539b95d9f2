"""A new table for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.small_tables import KEYS, SCHEMA
from tocsin.pipeline.datasets.table import DatasetTable
from tocsin.storage.local import LocalFolder


@pytest.fixture
def table(tmp_path: Path) -> DatasetTable:
    return DatasetTable.create(LocalFolder(tmp_path / "d"), SCHEMA, KEYS)
