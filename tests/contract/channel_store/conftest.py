"""This suite holds every backend of the channels' store to what its interface promises (tocsin.store.channel_store)."""

from __future__ import annotations

import pytest

from tests.contract.channel_store.channel import Channel
from tests.contract.stores import CHANNEL_STORE, StoreKind
from tocsin.store.channel_store import ChannelStore


@pytest.fixture
def kind() -> StoreKind:
    return CHANNEL_STORE


@pytest.fixture
async def channel(store: ChannelStore) -> Channel:
    return Channel(store, await store.add_channel())
