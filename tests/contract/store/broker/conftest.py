"""Holds every backend of the broker store to what its interface promises (tocsin.store.broker.interface)."""

from __future__ import annotations

import pytest

from tests.support.store_backends import BROKER_STORE, StoreKind


@pytest.fixture
def kind() -> StoreKind:
    return BROKER_STORE
