"""Hashes and checks passwords in a few threads of low priority, so that results are delivered meanwhile.

Argon2 is expensive on purpose, and anybody may try to log in. So a flood of logins waits in a bounded line, in which
origins take turns, and the threads yield to deliveries. Checking is expensive for the broker and guessing is cheap, so
`LoginThrottle` limits the wrong passwords of one user before they are checked.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from argon2 import PasswordHasher, Type
from argon2.exceptions import InvalidHashError, VerificationError

from tocsin.broker.accounts.policy import PasswordCost
from tocsin.serving.limits import WaitingLine
from tocsin.serving.rate_limit import RateLimiter
from tocsin.uncancellable import wait_despite_cancel

_T = TypeVar("_T")

_PATIENCE: Final = 10
"""The niceness of the threads, which lowers their priority below the rest of the broker."""


class Passwords:
    """Hashes and checks passwords. `threads` checks run at a time, and `waiting` more wait, in turn from each origin
    (see WaitingLine); all others get LimitError (429). `verify` replaces Argon2's check of a hash and a password."""

    def __init__(
        self, cost: PasswordCost, *, threads: int, waiting: int, verify: Callable[[str, str], bool] | None = None
    ) -> None:
        self._hasher = PasswordHasher(
            time_cost=cost.passes, memory_cost=cost.memory_kib, parallelism=cost.lanes, type=Type.ID
        )
        self._verify = verify or self._hasher.verify
        self._line = WaitingLine(threads, waiting, "passwords")
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="passwords", initializer=_give_way)
        self._decoy = ""

    async def open(self) -> None:
        # A hash of a random password at the present cost.
        self._decoy = await self.hash(secrets.token_urlsafe())

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown)

    async def hash(self, password: str, origin: str | None = None) -> str:
        return await self._run(lambda: self._hasher.hash(password), origin)

    async def matches(self, password: str, stored_hash: str | None, origin: str | None = None) -> bool:
        """Whether the password matches the hash. Without a hash it takes as long, so that timing reveals no users."""
        matched = await self._run(
            lambda: self._is_match(self._decoy if stored_hash is None else stored_hash, password), origin
        )
        return matched and stored_hash is not None

    def is_outdated(self, stored_hash: str) -> bool:
        """Whether the hash was made at another cost than the present one."""
        return self._hasher.check_needs_rehash(stored_hash)

    def _is_match(self, stored_hash: str, password: str) -> bool:
        try:
            return self._verify(stored_hash, password)
        except (VerificationError, InvalidHashError):
            return False

    async def _run(self, work: Callable[[], _T], origin: str | None) -> _T:
        async with self._line.hold_slot(origin or ""):
            # A thread cannot be cancelled, so it occupies its slot until it is done.
            return await wait_despite_cancel(asyncio.get_running_loop().run_in_executor(self._threads, work))


def _give_way() -> None:
    if sys.platform == "linux":  # Elsewhere the call would change the priority of the whole process.
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _PATIENCE)


_REMEMBERED: Final = 50_000
"""The number of users with recent failures, and of addresses with recent logins, that are remembered. An attacker gains
nothing by pushing an entry out with failures of other users: password checks are slow, so waiting is faster."""

_User = tuple[str, str]


class LoginThrottle:
    """A token bucket per user: a burst of `burst` wrong passwords, and `per_hour` in the long run.

    It counts unknown users, too, so that it reveals no names. An address from which the user has logged in lately has a
    bucket of its own: an attacker elsewhere cannot lock the user out there.
    """

    def __init__(self, burst: int, per_hour: int, *, remembered: int = _REMEMBERED) -> None:
        self._remembered = remembered
        self._limiter = RateLimiter(
            per_hour / 3_600, burst, refusal="too many wrong passwords were given for this user",
            hint="try again later", most=remembered,
        )  # fmt: skip
        self._homes: OrderedDict[tuple[_User, str | None], None] = OrderedDict()

    @contextmanager
    def attempt(self, user: _User, origin: str | None, now_us: int) -> Iterator[_LoginAttempt]:
        """Counts one try of a password; raises LimitError (429) if none is left. The try counts from the start, so that
        parallel tries gain nothing. It is given back if the password was right, or was not checked after all."""
        key = (user, origin if (user, origin) in self._homes else None)
        self._limiter.check(key, now_us / 1e6)
        attempt = _LoginAttempt()
        try:
            yield attempt
        finally:
            if attempt.right is not False:
                self._limiter.give_back(key)
            if attempt.right:
                self._homes[user, origin] = None
                self._homes.move_to_end((user, origin))
                if len(self._homes) > self._remembered:
                    self._homes.popitem(last=False)


@dataclass(slots=True)
class _LoginAttempt:
    """The outcome of a try; None if the password was not checked."""

    right: bool | None = None
