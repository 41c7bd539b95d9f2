"""Applications and their tokens, for the operator."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Final

from tocsin.broker.accounts.accounts import NewApplicationToken, Principal, Removed, Session
from tocsin.broker.accounts.directory import APPLICATION_PREFIX, Directory, now_us
from tocsin.broker.accounts.policy import AccountPolicy, check_limits, name_of
from tocsin.serving.tokens import SECRET_BYTES, digest
from tocsin.store.broker.interface import BrokerStore
from tocsin.store.broker.rows import EVERYTHING, ApplicationRights, ApplicationRow, FrontendRow
from tocsin.wire.errors import ConflictError, ForbiddenError, NotFoundError
from tocsin.wire.subscriber import DEFAULT_APPLICATION

# Subscribers, or subscriptions, that are removed in one transaction, so that nobody else waits long.
STEP: Final = 200
# Of an application whose channels were narrowed, until what it held of others has ended.
NARROWED: Final = "narrowed-{}"


class Applications(Directory):
    def __init__(self, store: BrokerStore, policy: AccountPolicy, clock_us: Callable[[], int] = now_us) -> None:
        super().__init__(store, policy, clock_us)
        self._narrowing = asyncio.Lock()

    async def open(self) -> None:
        await super().open()
        for application in list(self._by_id.values()):
            if application.closed:
                # Nobody is connected yet, so nobody needs to be told.
                async for _ in self._remove(application):
                    pass
            elif await self._store.fact(NARROWED.format(application.id)):
                async for _ in self.end_outside(application.id):
                    pass

    async def create_application(
        self, by: Principal, name: str, allowed: ApplicationRights = EVERYTHING
    ) -> NewApplicationToken:
        self._require_operator(by)
        check_limits(allowed.limits)
        token = _token()
        made = await self._store.add_application(
            name_of("name of an application", name), allowed, digest=digest(token), created_us=self._now_us()
        )
        self._put(made)
        return NewApplicationToken(made, token)

    async def change_application(self, by: Principal, name: str, allowed: ApplicationRights) -> ApplicationRow:
        self._require_operator(by)
        check_limits(allowed.limits)
        found = self._open_one(name)
        async with self._narrowing:
            if allowed.channels is not None:
                await self._store.set_fact(NARROWED.format(found.id), "yes")
            await self._store.change_application(found.id, allowed)
            return await self._read_again(found)

    async def end_outside(self, application: int) -> AsyncIterator[list[FrontendRow]]:
        async with self._narrowing:
            channels, last = self.rights(application).channels, 0
            if channels is not None:
                while gone := await self._store.end_outside(application, sorted(channels), after=last, limit=STEP):
                    last = gone[-1].id
                    yield gone
            await self._store.set_fact(NARROWED.format(application), "")

    async def renew_application_token(self, by: Principal, name: str) -> NewApplicationToken:
        found = self._scope(by, name)
        self._open_one(found.name)
        token = _token()
        await self._store.renew_application_token(found.id, digest(token))
        return NewApplicationToken(await self._read_again(found), token)

    async def remove_application(self, by: Principal, name: str) -> AsyncIterator[Removed]:
        self._require_operator(by)
        found = self._named(name)
        if found.name == DEFAULT_APPLICATION:
            raise ConflictError(f"the application {DEFAULT_APPLICATION} stays", hint="remove its subscribers")
        async for step in self._remove(found):
            yield step

    async def applications(self, by: Principal) -> list[ApplicationRow]:
        if isinstance(by, Session):
            raise ForbiddenError("a subscriber may not do this", hint="use the operator's token")
        if by.application is not None:
            return [await self._read_again(self._scope(by, None))]
        # From the store, which counts the subscribers.
        return [each for each in await self._store.applications() if not each.closed]

    async def application(self, by: Principal, name: str) -> ApplicationRow:
        return await self._read_again(self._scope(by, name))

    async def _remove(self, application: ApplicationRow) -> AsyncIterator[Removed]:
        await self._store.close_application(application.id)
        self._put(replace(application, closed=True))
        while some := await self._store.subscribers(application.id, limit=STEP):
            ids = [each.id for each in some]
            gone = await self._store.remove_subscribers(ids)
            for each in ids:
                self._changed(each)
            yield Removed(ids, gone)
        await self._store.remove_application(application.id)
        self._forget(application)

    def _open_one(self, name: str) -> ApplicationRow:
        found = self._named(name)
        if found.closed:
            raise ConflictError(f"the application {name} is being removed")
        return found

    async def _read_again(self, application: ApplicationRow) -> ApplicationRow:
        """As it is kept, by whatever order changes came in."""
        found = await self._store.application(application.id)
        if found is None:
            raise NotFoundError(f"there is no application {application.name}")
        self._put(found)
        return found


def _token() -> str:
    return APPLICATION_PREFIX + secrets.token_urlsafe(SECRET_BYTES)
