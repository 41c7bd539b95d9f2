"""Stores for the contract suites: a folder of tests says by `kind` which, and gets each backend's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.store_backends import BACKENDS, StoreBackend, StoreKind, opened


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest, kind: StoreKind, tmp_path: Path) -> StoreBackend[Any]:
    return BACKENDS[request.param](kind, tmp_path)


@pytest.fixture
async def small_store(backend: StoreBackend[Any]) -> AsyncIterator[Any]:
    """With room for little."""
    async with opened(backend.small_store()) as store:
        yield store


@pytest.fixture
async def store(backend: StoreBackend[Any]) -> AsyncIterator[Any]:
    async with opened(backend.store()) as store:
        yield store
