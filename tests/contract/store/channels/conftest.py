"""Holds every backend of the channels store to what its interface promises (tocsin.store.channels.interface)."""

from __future__ import annotations

import pytest

from tests.support.store_backends import CHANNEL_STORE, StoreKind
from tests.support.stored_channel import StoredChannel
from tocsin.store.channels.interface import ChannelStore


@pytest.fixture
def kind() -> StoreKind:
    return CHANNEL_STORE


@pytest.fixture
async def channel(store: ChannelStore) -> StoredChannel:
    return StoredChannel(store, await store.add_channel())
