"""This suite holds every backend of the cluster's store to what its interface promises (tocsin.store.store)."""

from __future__ import annotations

import pytest

from tests.contract.stores import CLUSTER_STORE, StoreKind


@pytest.fixture
def kind() -> StoreKind:
    return CLUSTER_STORE
