"""Limits of the broker's store: every backend refuses the values that some backend cannot store.

Callers import the module as `check` and call `check.cursor(…)`.
"""

from __future__ import annotations

from typing import Final, get_args

from tocsin.rules.model.cursors import LAST_ORDINAL, ORDINAL_BITS, Cursor, Position
from tocsin.store.broker.rows import ApplicationRights, FrontendRequest, NewBackendRow, ReboundBackend
from tocsin.store.channels.epochs import HIGHEST
from tocsin.store.channels.rows import PARAMETERS_LIMIT
from tocsin.store.cluster.interface import DATAVERSE_LIMIT, NAME_LIMIT, check_text
from tocsin.wire.cluster import SUBSCRIPTION_ID_LIMIT
from tocsin.wire.errors import InputError, LimitError
from tocsin.wire.subscriber import DeliveryMode

PERSON_LIMIT: Final = 128
"""The maximum length of the name of an application, a user or a group, in characters."""
_CHANNEL_LIMIT: Final = DATAVERSE_LIMIT + 1 + NAME_LIMIT
URL_LIMIT: Final = 2_048
TEXT_LIMIT: Final = 4_096
"""The maximum length of a fact, a secret, a hash or a token's id, in characters."""
LISTED: Final = 10_000
"""How many channels or feeds an application may list."""
_LIMITS: Final = 100
"""How many limits of its own an application may have."""

_MODES: Final = get_args(DeliveryMode)


def person(what: str, name: str) -> None:
    check_text(what, name, PERSON_LIMIT)
    if not name:
        raise InputError(f"a {what} cannot be empty")


def cursor(value: Cursor) -> None:
    """Refuses a cursor that does not fit the store: 63 bits for the epoch, 63 for execution and ordinal together."""
    epoch, execution, ordinal = value
    if not (0 <= epoch <= HIGHEST and 0 <= execution <= HIGHEST >> ORDINAL_BITS and 0 <= ordinal <= LAST_ORDINAL):
        raise InputError(f"the cursor {epoch}-{execution}-{ordinal} is beyond every result")


def position(value: Position) -> None:
    if not (0 <= value.epoch <= HIGHEST and 0 <= value.number <= HIGHEST):
        raise InputError(f"the position {value.epoch}-{value.number} is beyond every announcement")


def mode(name: str) -> None:
    if name not in _MODES:
        raise InputError(f"there is no mode {name!r}", hint=f"modes: {', '.join(_MODES)}")


def backend(row: NewBackendRow) -> None:
    check_text("channel", row.channel, _CHANNEL_LIMIT)
    check_text("list of parameters", row.parameters, PARAMETERS_LIMIT)
    _subscription(row)
    _number("interest", row.interest)


def rebound(row: ReboundBackend) -> None:
    _subscription(row)
    _number("interest", row.new_interest)


def _subscription(row: NewBackendRow | ReboundBackend) -> None:
    check_text("subscription's id", row.subscription, SUBSCRIPTION_ID_LIMIT)
    cursor(row.since)
    if row.head is not None:
        cursor(row.head)


def request(subscription: FrontendRequest) -> None:
    mode(subscription.mode)
    if subscription.since is not None:
        cursor(subscription.since)


def _number(what: str, value: int) -> None:
    if not 1 <= value <= HIGHEST:
        raise InputError(f"there is no {what} {value}")


def url(text: str) -> None:
    check_text("URL", text, URL_LIMIT)


def texts(what: str, *values: str) -> None:
    for text in values:
        check_text(what, text, TEXT_LIMIT)


def rights(allowed: ApplicationRights) -> None:
    for what, names in (("channels", allowed.channels), ("feeds", allowed.feeds)):
        if len(names or ()) > LISTED:
            raise LimitError(f"an application cannot name {len(names or ())} {what}", hint=f"at most {LISTED}")
        for name in names or ():
            check_text(f"name among the {what}", name, _CHANNEL_LIMIT)
    if len(allowed.limits) > _LIMITS:
        raise LimitError(f"an application cannot have {len(allowed.limits)} limits", hint=f"at most {_LIMITS}")
    for name, limit in allowed.limits.items():
        person("name of a limit", name)
        if not 0 <= limit <= HIGHEST:
            raise InputError(f"the limit {name} cannot be {limit}")
