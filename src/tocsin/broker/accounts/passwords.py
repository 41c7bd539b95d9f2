"""Passwords are hashed and checked on threads of their own: few, and last in line for the processor, so that results
are delivered meanwhile."""

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

from tocsin.broker.accounts.fair_queue import FairQueue
from tocsin.broker.accounts.policy import PasswordCost
from tocsin.patience import to_the_end

Answer = TypeVar("Answer")

PATIENCE: Final = 10
"""By how much the threads give way to the rest of the broker (as `nice` does)."""


class Passwords:
    """`threads` at once and `waiting` more, in turn from each origin (see Turns); the rest get LimitError (429)."""

    def __init__(self, cost: PasswordCost, *, threads: int, waiting: int) -> None:
        self._hasher = PasswordHasher(
            time_cost=cost.passes, memory_cost=cost.memory_kib, parallelism=cost.lanes, type=Type.ID
        )
        self._turns = FairQueue(threads, waiting, "passwords")
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="passwords", initializer=_give_way)
        self._decoy = ""

    async def open(self) -> None:
        # Nobody's password, of the present cost.
        self._decoy = await self.hashed(secrets.token_urlsafe())

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown)

    async def hashed(self, password: str, origin: str | None = None) -> str:
        return await self._run(lambda: self._hasher.hash(password), origin)

    async def matches(self, password: str, kept: str | None, origin: str | None = None) -> bool:
        """Whether this is the password of that hash. Takes as long when there is none."""
        found = await self._run(lambda: self._verified(self._decoy if kept is None else kept, password), origin)
        return found and kept is not None

    def is_outdated(self, kept: str) -> bool:
        """Whether it was hashed at another cost than the present one."""
        return self._hasher.check_needs_rehash(kept)

    def _verified(self, kept: str, password: str) -> bool:
        try:
            return self._hasher.verify(kept, password)
        except (VerificationError, InvalidHashError):
            return False

    async def _run(self, work: Callable[[], Answer], origin: str | None) -> Answer:
        async with self._turns.taken(origin):
            # It cannot be stopped, and takes its place until it is done.
            return await to_the_end(asyncio.get_running_loop().run_in_executor(self._threads, work))


def _give_way() -> None:
    if sys.platform == "linux":  # Elsewhere it would be the whole process that gives way.
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), PATIENCE)
