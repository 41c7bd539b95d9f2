"""Manages applications and their tokens, for the operator.

A removal goes in batches, so that other writers never wait long, and continues after a restart.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

from tocsin.broker.accounts.accounts import NewApplicationToken, Principal, Removed, Session
from tocsin.broker.accounts.directory import APPLICATION_PREFIX, Directory
from tocsin.broker.accounts.policy import name_of, validate_limit_settings
from tocsin.serving.tokens import SECRET_BYTES, digest
from tocsin.store.broker.rows import EVERYTHING, ApplicationRights, ApplicationRow, FrontendRow
from tocsin.wire.errors import ConflictError, ForbiddenError, NotFoundError
from tocsin.wire.subscriber import DEFAULT_APPLICATION

# The store's key for an application whose channels were restricted, until its excluded subscriptions have ended.
_NARROWED: Final = "narrowed-{}"


class Applications:
    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._store = directory.store
        self._step = directory.policy.removed_at_once
        self._narrowing = asyncio.Lock()

    async def open(self) -> None:
        """Completes removals that were interrupted."""
        for application in list(self._directory.by_id.values()):
            if application.closed:
                # No client is connected yet, so there is no subscriber to notify.
                async for _ in self._remove(application):
                    pass
            elif await self._store.fact(_NARROWED.format(application.id)):
                async for _ in self.end_outside(application.id):
                    pass

    async def create_application(
        self, by: Principal, name: str, allowed: ApplicationRights = EVERYTHING
    ) -> NewApplicationToken:
        self._directory.require_operator(by)
        validate_limit_settings(allowed.limits)
        token = _token()
        new_application = await self._store.add_application(
            name_of("name of an application", name), allowed, digest=digest(token), created_us=self._directory.now_us()
        )
        self._directory.put(new_application)
        return NewApplicationToken(new_application, token)

    async def change_application(self, by: Principal, name: str, allowed: ApplicationRights) -> ApplicationRow:
        self._directory.require_operator(by)
        validate_limit_settings(allowed.limits)
        application = self._open_one(name)
        async with self._narrowing:
            if allowed.channels is not None:
                await self._store.set_fact(_NARROWED.format(application.id), "yes")
            await self._store.change_application(application.id, allowed)
            return await self._read_again(application)

    async def end_outside(self, application: int) -> AsyncIterator[list[FrontendRow]]:
        async with self._narrowing:
            channels, last = self._directory.rights(application).channels, 0
            if channels is not None:
                while frontends := await self._store.end_outside(
                    application, sorted(channels), after=last, limit=self._step
                ):
                    last = frontends[-1].id
                    yield frontends
            await self._store.set_fact(_NARROWED.format(application), "")

    async def renew_application_token(self, by: Principal, name: str) -> NewApplicationToken:
        application = self._directory.scope(by, name)
        self._open_one(application.name)
        token = _token()
        await self._store.renew_application_token(application.id, digest(token))
        return NewApplicationToken(await self._read_again(application), token)

    async def remove_application(self, by: Principal, name: str) -> AsyncIterator[Removed]:
        self._directory.require_operator(by)
        application = self._directory.get_application(name)
        if application.name == DEFAULT_APPLICATION:
            raise ConflictError(f"the application {DEFAULT_APPLICATION} stays", hint="remove its subscribers")
        async for step in self._remove(application):
            yield step

    async def applications(self, by: Principal) -> list[ApplicationRow]:
        if isinstance(by, Session):
            raise ForbiddenError("a subscriber may not do this", hint="use the operator's token")
        if by.application is not None:
            return [await self._read_again(self._directory.scope(by, None))]
        # Read the store, which counts the subscribers.
        return [row for row in await self._store.applications() if not row.closed]

    async def application(self, by: Principal, name: str) -> ApplicationRow:
        return await self._read_again(self._directory.scope(by, name))

    async def _remove(self, application: ApplicationRow) -> AsyncIterator[Removed]:
        """Closes the application first, so that it takes no new subscribers, then removes them in batches."""
        await self._store.close_application(application.id)
        self._directory.put(replace(application, closed=True))
        while subscribers := await self._store.subscribers(application.id, limit=self._step):
            ids = [subscriber.id for subscriber in subscribers]
            frontends = await self._store.remove_subscribers(ids)
            for subscriber_id in ids:
                self._directory.forget_subscriber(subscriber_id)
            yield Removed(ids, frontends)
        await self._store.remove_application(application.id)
        self._directory.forget(application)

    def _open_one(self, name: str) -> ApplicationRow:
        """The application; raises ConflictError if it is being removed."""
        application = self._directory.get_application(name)
        if application.closed:
            raise ConflictError(f"the application {name} is being removed")
        return application

    async def _read_again(self, application: ApplicationRow) -> ApplicationRow:
        """Reads the stored state, which is right even if changes arrived out of order."""
        stored = await self._store.application(application.id)
        if stored is None:
            raise NotFoundError(f"there is no application {application.name}")
        self._directory.put(stored)
        return stored


def _token() -> str:
    return APPLICATION_PREFIX + secrets.token_urlsafe(SECRET_BYTES)
