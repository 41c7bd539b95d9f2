"""What may be set about accounts, and what names and passwords may look like."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tocsin.broker.accounts.accounts import LIMITS
from tocsin.store.broker.checks import PERSON_LIMIT
from tocsin.wire.errors import InputError, LimitError
from tocsin.wire.subscriber import PASSWORD_LIMIT_BYTES

# Users named in one call.
AT_ONCE: Final = 1_000


@dataclass(frozen=True, slots=True)
class PasswordCost:
    """How dear it is to try a password (Argon2id): about 20 ms and 19 MiB, as OWASP advises at least."""

    passes: int = 2
    memory_kib: int = 19_456
    lanes: int = 1


@dataclass(frozen=True, slots=True)
class AccountPolicy:
    """`operator_token`: who shows it is the operator; empty: nobody can. `everybody_operates`: so is who shows none.

    `open_registration`: anybody may register into the application `default`. `threads` check passwords at once and
    `waiting` more may wait; passwords have at least so many characters. `wrong_passwords` may be tried for one user at
    once, and so many per hour on the long run. The limits hold where an application has none
    of its own.
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
    limits: Mapping[str, int] = field(
        default_factory=lambda: {
            "subscribers": 1_000_000,
            "groups": 10_000,
            "members": 10_000,
            "group_subscriptions": 1_000,
        }
    )


def same(name: str) -> str:
    """However a keyboard composes its characters."""
    return unicodedata.normalize("NFC", name)


def name_of(what: str, name: str) -> str:
    """The name as it is kept: what looks the same is the same. InputError for one that nobody could read or type."""
    kept = same(name)
    if len(kept) > PERSON_LIMIT:
        raise LimitError(f"a {what} of {len(kept)} characters is too long", hint=f"at most {PERSON_LIMIT}", status=400)
    if not kept or not kept.isprintable() or kept != kept.strip():
        raise InputError(f"a {what} has printable characters and no blank at its ends, got {kept!r}")
    return kept


def names_of(what: str, names: Iterable[str]) -> list[str]:
    kept = list(dict.fromkeys(name_of(what, name) for name in names))
    if len(kept) > AT_ONCE:
        raise LimitError(f"{len(kept)} are too many at once", hint=f"at most {AT_ONCE} in one request", status=400)
    return kept


def password_of(password: str, at_least: int = 0) -> str:
    """The password as it is hashed: the same characters, however a keyboard composes them."""
    kept = same(password)
    try:
        size_bytes = len(kept.encode())
    except UnicodeEncodeError:
        raise InputError("a password cannot contain half of a character pair") from None
    if size_bytes > PASSWORD_LIMIT_BYTES:
        raise LimitError("the password is too long", hint=f"at most {PASSWORD_LIMIT_BYTES} bytes", status=400)
    if len(kept) < at_least:
        raise InputError("the password is too short", hint=f"at least {at_least} characters")
    return kept


def check_limits(limits: Mapping[str, int]) -> None:
    for name, limit in limits.items():
        if name not in LIMITS:
            raise InputError(f"limits.{name}: there is no such limit", hint=f"limits: {', '.join(LIMITS)}")
        if limit.__class__ is not int or limit < 0:
            raise InputError(f"limits.{name}: must be a whole number, 0 or more, got {limit!r}")
