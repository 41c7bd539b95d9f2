"""Hashes and checks passwords in a few threads of low priority, so that results are delivered meanwhile.

Argon2 is expensive on purpose, and anybody may try to log in. So a flood of logins waits in a bounded line, in which
origins take turns, and the threads yield to deliveries.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, TypeVar

from argon2 import PasswordHasher, Type
from argon2.exceptions import InvalidHashError, VerificationError

from tocsin.broker.accounts.policy import PasswordCost
from tocsin.patience import wait_despite_cancel
from tocsin.serving.limits import WaitingLine

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
        async with self._line.passed(origin or ""):
            # A thread cannot be cancelled, so it occupies its slot until it is done.
            return await wait_despite_cancel(asyncio.get_running_loop().run_in_executor(self._threads, work))


def _give_way() -> None:
    if sys.platform == "linux":  # Elsewhere the call would change the priority of the whole process.
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _PATIENCE)
