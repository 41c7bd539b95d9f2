"""Accounts in a broker's own store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.local_accounts import FakeAccountsClock, opened
from tocsin.store.broker.sqlite.store import SqliteBrokerStore


@pytest.fixture
def clock() -> FakeAccountsClock:
    return FakeAccountsClock()


@pytest.fixture
async def store(tmp_path: Path) -> Any:
    store = SqliteBrokerStore(tmp_path / "broker.db")
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def accounts(store: SqliteBrokerStore, clock: FakeAccountsClock) -> Any:
    accounts = await opened(store, clock)
    yield accounts
    await accounts.close()
