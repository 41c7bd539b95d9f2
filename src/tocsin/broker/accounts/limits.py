"""Limits how much subscribers, groups and applications may have: by the application's own limit, or by the broker's.

The store refuses what exceeds a limit, in the transaction that would exceed it; the broker's service counts open
connections.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tocsin.wire.errors import InputError

LIMITS: Final[dict[str, str]] = {
    "subscribers": "subscribers of the application",
    "subscriptions": "subscriptions of one subscriber, without those of its groups",
    "connections": "connections of one subscriber at once",
    "groups": "groups of the application",
    "members": "members of one group",
    "group_subscriptions": "subscriptions of one group",
}


def account_limit(name: str, own: Mapping[str, int], defaults: Mapping[str, int]) -> int:
    """The application's own limit if it has one, otherwise the broker's."""
    return own[name] if name in own else defaults[name]


def validate_limit_settings(limits: Mapping[str, int]) -> None:
    for name, limit in limits.items():
        if name not in LIMITS:
            raise InputError(f"limits.{name}: there is no such limit", hint=f"limits: {', '.join(LIMITS)}")
        if limit.__class__ is not int or limit < 0:
            raise InputError(f"limits.{name}: must be a whole number, 0 or more, got {limit!r}")
