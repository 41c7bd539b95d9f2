"""This suite holds every backend of the brokers' store to what its interface promises (tocsin.store.broker_store)."""

from __future__ import annotations

import pytest

from tests.contract.stores import BROKER_STORE, StoreKind


@pytest.fixture
def kind() -> StoreKind:
    return BROKER_STORE
