"""A catalog in a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tocsin.cluster.catalog.catalog import CatalogStore
from tocsin.store.cluster.sqlite_store import SqliteStore


@pytest.fixture
async def opened(tmp_path: Path) -> Any:
    store = SqliteStore(tmp_path / "store.sqlite")
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def kept(opened: SqliteStore) -> CatalogStore:
    kept = CatalogStore(opened)
    await kept.load()
    return kept
