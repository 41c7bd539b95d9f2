"""Notifications for brokers of the original's kinds, `general` and `bad`, in the JSON that AsterixDB's BAD sends.

    {"dataverseName":"v","channelName":"c","channelExecutionEpochTime":1794000060000,"subscriptionIds":[["id",…]]}
    {"dataverseName":"v","channelName":"p","channelExecutionEpochTime":1794000060000,"results":[
      {"result":…,"channelExecutionTime":"…","subscriptionId":"id","deliveryTime":"…"},…]}

A broker of the kind `bad` is another cluster's feed: the times and ids of results are then constructors of ADM, such as
`datetime("…")`, so that the feed knows their types.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

import orjson

from tocsin.rules.model.values import datetime_text


def notification_body(channel: tuple[str, str], executed_us: int, field: str, items: Iterable[bytes]) -> bytes:
    """A message about one execution of a channel (dataverse and name). `items` are encoded already."""
    head = {"dataverseName": channel[0], "channelName": channel[1], "channelExecutionEpochTime": executed_us // 1_000}
    return orjson.dumps(head)[:-1] + b',"' + field.encode() + b'":[' + b",".join(items) + b"]}"


def id_list(subscription_ids: Iterable[str]) -> bytes:
    """The one item of `subscriptionIds`: the original lists the ids of an execution as an array in the array."""
    return orjson.dumps(list(subscription_ids))


def result_item(payload: bytes, times: tuple[datetime, datetime], subscription_id: str, *, adm: bool) -> bytes:
    """A pushed result of one subscription. `times` are the instant of its execution and the end of the execution."""
    executed, delivered = (orjson.dumps(datetime_text(time)) for time in times)
    identity = orjson.dumps(subscription_id)
    if adm:
        executed, delivered = (b"datetime(" + time + b")" for time in (executed, delivered))
        identity = b"uuid(" + identity + b")" if _is_uuid(subscription_id) else identity
    return b"".join((
        b'{"result":', payload, b',"channelExecutionTime":', executed, b',"subscriptionId":', identity,
        b',"deliveryTime":', delivered, b"}",
    ))  # fmt: skip


def _is_uuid(text: str) -> bool:
    try:
        return str(UUID(text)) == text.lower()
    except ValueError:
        return False
