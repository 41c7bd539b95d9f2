"""A new table for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.small_tables import KEYS, SCHEMA
from tocsin.pipeline.datasets.table import DatasetTable


@pytest.fixture
def table(tmp_path: Path) -> DatasetTable:
    return DatasetTable.create(tmp_path / "d", SCHEMA, KEYS)
