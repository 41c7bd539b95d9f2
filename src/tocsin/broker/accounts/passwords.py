"""Passwords are hashed and checked on threads of their own: few, so that results are delivered meanwhile."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from argon2 import PasswordHasher, Type
from argon2.exceptions import InvalidHashError, VerificationError

from tocsin.broker.accounts.policy import PasswordCost
from tocsin.serving.limits import Gate

Answer = TypeVar("Answer")


class Passwords:
    """`threads` at once and `waiting` more; who comes then gets LimitError (429)."""

    def __init__(self, cost: PasswordCost, *, threads: int, waiting: int) -> None:
        self._hasher = PasswordHasher(
            time_cost=cost.passes, memory_cost=cost.memory_kib, parallelism=cost.lanes, type=Type.ID
        )
        self._gate = Gate(threads, waiting, "passwords")
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="passwords")
        self._decoy = ""

    async def open(self) -> None:
        # Nobody's password, of the present cost.
        self._decoy = await self.hashed(secrets.token_urlsafe())

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown)

    async def hashed(self, password: str) -> str:
        return await self._run(lambda: self._hasher.hash(password))

    async def matches(self, password: str, kept: str | None) -> bool:
        """Whether this is the password of that hash. Takes as long when there is none."""
        found = await self._run(lambda: self._verified(self._decoy if kept is None else kept, password))
        return found and kept is not None

    def is_outdated(self, kept: str) -> bool:
        """Whether it was hashed at another cost than the present one."""
        return self._hasher.check_needs_rehash(kept)

    def _verified(self, kept: str, password: str) -> bool:
        try:
            return self._hasher.verify(kept, password)
        except (VerificationError, InvalidHashError):
            return False

    async def _run(self, work: Callable[[], Answer]) -> Answer:
        async with self._gate.passed():
            running = asyncio.get_running_loop().run_in_executor(self._threads, work)
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                # It cannot be stopped, and takes its place until it is done.
                await asyncio.wait((running,))
                raise
