"""Holds every backend of the cluster store to what its interface promises (tocsin.store.cluster.interface)."""

from __future__ import annotations

import pytest

from tests.support.store_backends import CLUSTER_STORE, StoreKind


@pytest.fixture
def kind() -> StoreKind:
    return CLUSTER_STORE
