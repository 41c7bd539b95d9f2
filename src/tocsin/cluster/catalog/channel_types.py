"""Types that the catalog has by itself: of the datasets of channels, and of active records.

They have the names that the original BAD platform gives them, so that its queries of Metadata find them. A
`subscriptionId` is a uuid, as there, unless the client chose an id that is none.
"""

from __future__ import annotations

from typing import Final

from tocsin.rules.model import types as t
from tocsin.rules.model.types import Field, ObjectType

SUBSCRIPTIONS_TYPE: Final = ObjectType(
    (Field("subscriptionId", t.ANY), Field("DataverseName", t.STRING), Field("BrokerName", t.STRING)),
    open=True,
    name="ChannelSubscriptionsType",
)  # each channel's own has also `param0`, `param1`, …
RESULTS_TYPE: Final = ObjectType(
    (
        Field("resultId", t.UUID), Field("channelExecutionTime", t.DATETIME), Field("subscriptionId", t.ANY),
        Field("deliveryTime", t.DATETIME), Field("result", t.ANY),
    ),
    open=False,
    name="ChannelResultsType",
)  # fmt: skip
# What the records of an active dataset have besides their own fields.
ACTIVE_TYPE: Final = ObjectType((Field("_active_timestamp", t.DATETIME),), open=True, name="ActiveRecordType")
SUBSCRIPTIONS_KEYS: Final = (("subscriptionId",),)
RESULTS_KEYS: Final = (("resultId",),)
