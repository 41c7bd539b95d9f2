"""Executes INSERT, UPSERT and DELETE on the datasets of a channel: its subscriptions and its results.

The channel store has these rows in a form of its own, so a change of the dataset becomes the call of the store that
has the same effect. Each statement is one transaction of the store, with the checks of SUBSCRIBE.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from tocsin.cluster.catalog.catalog import CatalogStore
from tocsin.cluster.catalog.entries import ChannelEntry
from tocsin.cluster.catalog.refs import full_name
from tocsin.cluster.channels.parameters import ParameterValues
from tocsin.cluster.channels.subscriptions import Subscriptions, check_many
from tocsin.cluster.channels.virtual_datasets import VirtualDataset, visible_results
from tocsin.rules.model.cursors import Cursor, InterestId
from tocsin.rules.model.values import MISSING
from tocsin.store.channels.interface import ChannelStore
from tocsin.store.channels.rows import BackendRequest, BrokerName
from tocsin.wire.errors import ConflictError, InputError, LimitError, StatementError, TocsinError

# One transaction deletes at most this many results: other writers wait for it.
_DELETED_LIMIT: Final = 200_000
_UNKNOWN: Final = (None, MISSING)


class ChannelDatasetChanges:
    def __init__(self, catalog: CatalogStore, store: ChannelStore, subscriptions: Subscriptions) -> None:
        self._catalog = catalog
        self._store = store
        self._subscriptions = subscriptions

    async def insert(self, shown: VirtualDataset, records: Sequence[Any], *, upsert: bool) -> int:
        """Subscribes once per record, for all records or none. With `upsert`, a record with the id of a subscription
        changes that subscription. Returns the number of records."""
        if shown.is_results:
            raise ConflictError(
                f"{shown.name} has the results of the channel {shown.channel.name}: only its executions add some",
                hint="INSERT INTO a dataset that the channel watches",
            )
        check_many(len(records))
        # Check on a thread: ten thousand take a while, and the event loop has other work.
        requests = await asyncio.to_thread(self._requests, shown, records)
        await self._subscriptions.request(shown.channel, requests, when_taken="change" if upsert else "refuse")
        return len(requests)

    async def delete(self, shown: VirtualDataset, keys: Collection[Any] | None) -> int:
        """Deletes the rows with these keys, or all rows. Returns their number."""
        if shown.is_results:
            return await self._delete_results(shown.channel, None if keys is None else set(keys))
        ids = await self._subscriptions.ids(shown.channel) if keys is None else [str(key) for key in keys]
        return len((await self._subscriptions.unsubscribe(shown.channel, ids)).removed)

    def _requests(self, shown: VirtualDataset, records: Sequence[Any]) -> list[BackendRequest]:
        requests = []
        for number, record in enumerate(records, start=1):
            try:
                requests.append(self._request(shown, record))
            except TocsinError as error:
                where = f"record {number}" if len(records) > 1 else "the record"
                raise StatementError(f"{where}: {error.message}", hint=error.hint, record=number) from None
        return requests

    def _request(self, shown: VirtualDataset, record: Any) -> BackendRequest:
        if not isinstance(record, Mapping):
            raise InputError("a subscription is an object", hint=_example(shown.channel))
        known_names = [field.name for field in shown.type.fields]
        for name in record:
            if name not in known_names:
                raise InputError(f"{name}: a subscription has no such field", hint=f"it has {', '.join(known_names)}")
        dataverse = record.get("DataverseName")
        entry = self._catalog.catalog.broker(
            shown.dataverse if dataverse in _UNKNOWN else _text("DataverseName", dataverse, shown.channel),
            _text("BrokerName", record.get("BrokerName"), shown.channel),
        )
        parameters = ParameterValues(shown.channel.parameters, shown.channel.types)
        given = [record.get(f"param{number}", MISSING) for number in range(len(parameters.names))]
        id_ = record.get("subscriptionId", MISSING)
        if not isinstance(id_, str | UUID) and id_ not in _UNKNOWN:
            raise InputError("subscriptionId: must be a text or a uuid", hint="leave it out to get one")
        return BackendRequest(
            parameters.text(parameters.check(given)), BrokerName(entry.dataverse, entry.name),
            None if id_ in _UNKNOWN else str(id_),
        )  # fmt: skip

    async def _delete_results(self, channel: ChannelEntry, keys: set[UUID] | None) -> int:
        """Deletes results by their ids. The store has a result once for all subscriptions with equal parameters, so
        the statement must select its rows for all of them."""
        selected: list[tuple[InterestId, Cursor]] = []
        rows = 0
        async for interest, result, ids in visible_results(self._store, channel.channel_id):
            count = len(ids) if keys is None else sum(id_ in keys for id_ in ids)
            if 0 < count < len(ids):
                raise ConflictError(
                    f"the statement selects a result for {count} of the {len(ids)} subscriptions that share it",
                    hint="subscriptions with equal parameters share their results: select by channelExecutionTime, "
                    "deliveryTime or result, which are the same for all of them, or UNSUBSCRIBE",
                )
            if count:
                selected.append((interest, result.cursor))
                rows += count
            if len(selected) > _DELETED_LIMIT:
                raise LimitError(
                    f"the statement deletes more than {_DELETED_LIMIT:,} results of {full_name(channel)}",
                    hint="delete them in parts: add a condition on channelExecutionTime",
                )
        deleted = await self._store.delete_results(channel.channel_id, selected)
        # Retention may have removed some of them meanwhile.
        return rows if deleted == len(selected) else min(rows, deleted)


def _text(name: str, value: Any, channel: ChannelEntry) -> str:
    if not isinstance(value, str):
        raise InputError(f"{name}: a subscription needs this text", hint=_example(channel))
    return value


def _example(channel: ChannelEntry) -> str:
    parameters = "".join(f', "param{number}": …' for number in range(len(channel.parameters)))
    return f'write {{"DataverseName": "{channel.dataverse}", "BrokerName": …{parameters}}}'
