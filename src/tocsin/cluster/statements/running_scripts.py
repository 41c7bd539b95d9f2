"""Tracks the running scripts by id, so that their owners and administrators can stop them.

A stop, a time limit and the end of the cluster all expire the same `asyncio.Timeout`, and only the error differs. So
there is one way for a script to be interrupted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import structlog

from tocsin.serving.tokens import Token
from tocsin.wire.cluster import RunningScriptInfo
from tocsin.wire.errors import (
    ConflictError,
    ForbiddenError,
    NotFoundError,
    ScriptCancelledError,
    StoppedError,
    TocsinError,
    UnavailableError,
)

_EXCERPT_CHARACTERS = 200
_STOP_S = 5.0

_log = structlog.get_logger("tocsin.cluster")


@dataclass(slots=True)
class RunningScript:
    """One script that runs or waits."""

    id: str
    script: str
    principal: Token
    timeout_s: float
    scope: asyncio.Timeout
    """Cancels the work when its time is up or somebody stops it."""
    statement: int = 0
    """The number of the current statement; 0 while the script waits to start."""
    stopped: TocsinError | None = None
    began_s: float = field(default_factory=time.monotonic)

    def stop(self, why: TocsinError) -> None:
        if self.stopped is None and not self.scope.expired():
            self.stopped = why
            self.scope.reschedule(asyncio.get_running_loop().time())

    def why_ended(self, *, done: bool = False) -> TocsinError:
        """Returns the error that says why the script ended. With `done`, the current statement completed because it
        could no longer be stopped."""
        error = self.stopped or StoppedError(
            f"the script was not done within {self.timeout_s:g} s",
            hint="ask for more time, as far as the cluster's setting cluster.statements.timeout_s allows",
        )
        error.statement = self.statement or None
        if done:
            error.message += f"; statement {self.statement} was done by then"
        return error

    def info(self) -> RunningScriptInfo:
        return RunningScriptInfo(
            self.id,
            "running" if self.statement else "waiting",
            self.statement or None,
            round(time.monotonic() - self.began_s, 3),
            self.principal.name,
            self.script[:_EXCERPT_CHARACTERS],
        )


class RunningScripts:
    """All running scripts, by id."""

    def __init__(self) -> None:
        self._by_id: dict[str, RunningScript] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    @contextmanager
    def register(self, identity: str, script: str, principal: Token, timeout_s: float) -> Iterator[RunningScript]:
        """Registers the script under its id while the block runs."""
        if self._closed:
            raise UnavailableError("the cluster is stopping")
        if identity in self._by_id:
            raise ConflictError(
                f"a script with the id {identity} is running already", hint="give each request its own id"
            )
        running = self._by_id[identity] = RunningScript(
            identity, script, principal, timeout_s, asyncio.timeout(timeout_s)
        )
        self._idle.clear()
        try:
            yield running
        finally:
            del self._by_id[identity]
            if not self._by_id:
                self._idle.set()

    def visible_to(self, principal: Token) -> list[RunningScript]:
        """Returns the scripts that the principal may see and stop: its own, or all for an administrator."""
        return [
            running for running in self._by_id.values() if principal.role == "admin" or running.principal == principal
        ]

    def cancel(self, identity: str, principal: Token) -> None:
        running = self._by_id.get(identity)
        if running is None:
            raise NotFoundError(
                f"no script with the id {identity} is running", hint="GET /v1/statements lists those that are"
            )
        if running not in self.visible_to(principal):
            raise ForbiddenError("this script was sent with another token", hint="an admin token may stop it")
        running.stop(ScriptCancelledError("the script was cancelled"))

    async def close(self, grace_s: float) -> None:
        """Refuses new scripts, lets running scripts finish within `grace_s`, then stops the rest and waits a moment for
        them."""
        self._closed = True
        if self._by_id:
            _log.warning("stopping: running scripts get a moment to finish", scripts=len(self._by_id), seconds=grace_s)
        try:
            async with asyncio.timeout(grace_s):
                await self._idle.wait()
        except TimeoutError:
            for running in list(self._by_id.values()):
                running.stop(UnavailableError("the cluster is stopping"))
            with suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await self._idle.wait()
