"""The policy of accounts: its settings, and the rules for names and passwords.

Names are normalized here, so that names that look the same are the same everywhere.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tocsin.store.broker.checks import PERSON_LIMIT
from tocsin.wire.errors import InputError, LimitError
from tocsin.wire.subscriber import PASSWORD_LIMIT_BYTES

# The largest number of users in one call.
AT_ONCE: Final = 1_000


@dataclass(frozen=True, slots=True)
class PasswordCost:
    """The cost of checking a password with Argon2id: about 20 ms and 19 MiB, OWASP's recommended minimum."""

    passes: int = 2
    memory_kib: int = 19_456
    lanes: int = 1


@dataclass(frozen=True, slots=True)
class AccountPolicy:
    """The settings of accounts.

    `operator_token` authenticates the operator; if it is empty, no token does. `everybody_operates`: a request without
    a token is the operator's. `open_registration`: anybody may register into the application `default`.

    `threads` password checks run at a time and `waiting` more may wait; `password_characters` is the minimum length.
    `wrong_passwords` is the burst of wrong passwords per user, `wrong_passwords_per_hour` the sustained rate. The
    limits apply where an application has none of its own. `removed_at_once`: the subscribers or subscriptions that one
    transaction removes, so that other writers do not wait long.
    """

    operator_token: str = field(default="", repr=False)
    everybody_operates: bool = False
    open_registration: bool = False
    token_s: float = 3_600.0
    session_s: float = 2_592_000.0
    password_characters: int = 8
    cost: PasswordCost = PasswordCost()
    threads: int = 1
    waiting: int = 500
    wrong_passwords: int = 20
    wrong_passwords_per_hour: int = 60
    removed_at_once: int = 200
    limits: Mapping[str, int] = field(
        default_factory=lambda: {
            "subscribers": 1_000_000,
            "groups": 10_000,
            "members": 10_000,
            "group_subscriptions": 1_000,
        }
    )


def normalize(name: str) -> str:
    """Normalizes Unicode, since keyboards compose the same characters differently."""
    return unicodedata.normalize("NFC", name)


def name_of(what: str, name: str) -> str:
    """The name as it is stored: names that look the same are the same. Raises InputError for an unreadable name."""
    normalized = normalize(name)
    if len(normalized) > PERSON_LIMIT:
        raise LimitError(
            f"a {what} of {len(normalized)} characters is too long", hint=f"at most {PERSON_LIMIT}", status=400
        )
    if not normalized or not normalized.isprintable() or normalized != normalized.strip():
        raise InputError(f"a {what} has printable characters and no blank at its ends, got {normalized!r}")
    return normalized


def names_of(what: str, names: Iterable[str]) -> list[str]:
    unique = list(dict.fromkeys(name_of(what, name) for name in names))
    if len(unique) > AT_ONCE:
        raise LimitError(f"{len(unique)} are too many at once", hint=f"at most {AT_ONCE} in one request", status=400)
    return unique


def password_of(password: str, at_least: int = 0) -> str:
    """The password as it is hashed, normalized like names."""
    normalized = normalize(password)
    try:
        size_bytes = len(normalized.encode())
    except UnicodeEncodeError:
        raise InputError("a password cannot contain half of a character pair") from None
    if size_bytes > PASSWORD_LIMIT_BYTES:
        raise LimitError("the password is too long", hint=f"at most {PASSWORD_LIMIT_BYTES} bytes", status=400)
    if len(normalized) < at_least:
        raise InputError("the password is too short", hint=f"at least {at_least} characters")
    return normalized


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
