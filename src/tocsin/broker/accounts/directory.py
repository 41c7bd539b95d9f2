"""The applications, all of them in memory, and who may manage which."""

from __future__ import annotations

import hmac
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from tocsin.broker.accounts.accounts import OPERATOR, ManagerIdentity, Principal, Rights, Session
from tocsin.broker.accounts.policy import AccountPolicy, name_of, same
from tocsin.serving.tokens import PREFIX, digest
from tocsin.store.broker.interface import BrokerStore
from tocsin.store.broker.rows import ApplicationRow, SubscriberRow
from tocsin.wire.errors import ForbiddenError, NotFoundError, UnauthorizedError
from tocsin.wire.subscriber import DEFAULT_APPLICATION

APPLICATION_PREFIX: Final = f"{PREFIX}app_"
REMEMBERED: Final = 20_000
NOTHING: Final = Rights(frozenset(), frozenset())


def now_us() -> int:
    return time.time_ns() // 1_000


class Directory:
    """What every part of the accounts needs: the store, the clock, the applications, and subscribers seen lately.

    One process owns the store, so what is in memory is what is kept; `_put` and `_forget` hold the two together.
    """

    def __init__(self, store: BrokerStore, policy: AccountPolicy, clock_us: Callable[[], int] = now_us) -> None:
        self._store = store
        self._policy = policy
        self._now_us = clock_us
        self._by_id: dict[int, ApplicationRow] = {}
        self._by_name: dict[str, ApplicationRow] = {}
        self._by_digest: dict[str, int] = {}
        self._rights: dict[int, Rights] = {}
        self._operator = digest(policy.operator_token) if policy.operator_token else None
        self._seen: OrderedDict[int, SubscriberRow] = OrderedDict()
        self._changes = 0

    async def open(self) -> None:
        for application in await self._store.applications():
            self._put(application)

    def rights(self, application: int) -> Rights:
        return self._rights.get(application, NOTHING)

    # --- who asks

    def _manager(self, token: str | None) -> ManagerIdentity | None:
        """Whose token this is, if it is a manager's."""
        if token is None:
            if self._policy.everybody_operates:
                return OPERATOR
            raise UnauthorizedError("this needs a token", hint="send the header Authorization: Bearer …")
        shown = digest(token)
        if self._operator is not None and hmac.compare_digest(shown, self._operator):
            return OPERATOR
        # A lookup by the digest tells nothing of the token by the time that it takes.
        found = self._by_id.get(self._by_digest.get(shown, 0))
        if found is not None and not found.closed:
            return ManagerIdentity(found.id, found.name)
        return None

    def _require_operator(self, by: Principal) -> None:
        if not isinstance(by, ManagerIdentity) or not by.is_operator:
            raise ForbiddenError("only the operator may do this", hint="use the operator's token")

    def _scope(self, by: Principal, application: str | None) -> ApplicationRow:
        """The application that `by` means and may manage."""
        if isinstance(by, Session):
            raise ForbiddenError("a subscriber may not do this", hint="use the application's token")
        if by.application is not None:
            return self._own(by.application, application)
        return self._named(DEFAULT_APPLICATION if application is None else application)

    def _own(self, own: int, application: str | None) -> ApplicationRow:
        """One's own application; whether there is another of that name, nobody is told."""
        found = self._by_id.get(own)
        if found is None or found.closed:
            raise ForbiddenError("the application of this token is being removed")
        if application is not None and same(application) != found.name:
            raise ForbiddenError(f"this reaches the application {found.name} only", hint="leave out the application")
        return found

    def _named(self, name: str) -> ApplicationRow:
        found = self._by_name.get(same(name))
        if found is None:
            raise NotFoundError(f"there is no application {name[:200]!r}")
        return found

    def _limit(self, application: ApplicationRow, name: str) -> int | None:
        return application.allowed.limits.get(name, self._policy.limits.get(name))

    # --- subscribers

    async def _subscriber(self, id_: int) -> SubscriberRow | None:
        """One that is there at this moment, mostly from memory."""
        found = self._seen.get(id_)
        if found is not None:
            self._seen.move_to_end(id_)
            return found
        before = self._changes
        found = await self._store.subscriber_by_id(id_)
        # What changed while it was read may have been read in its old state.
        if found is not None and before == self._changes:
            self._seen[id_] = found
            if len(self._seen) > REMEMBERED:
                self._seen.popitem(last=False)
        return found

    async def _user(self, application: ApplicationRow, user: str) -> SubscriberRow:
        found = await self._store.subscriber(application.id, name_of("user's name", user))
        if found is None:
            raise NotFoundError(f"there is no user {user[:200]!r} of the application {application.name}")
        return found

    def _changed(self, subscriber: int) -> None:
        self._changes += 1
        self._seen.pop(subscriber, None)

    # --- applications

    def _put(self, application: ApplicationRow) -> None:
        before = self._by_id.get(application.id)
        if before is not None and before.digest is not None:
            self._by_digest.pop(before.digest, None)
        if application.digest is not None:
            self._by_digest[application.digest] = application.id
        self._by_id[application.id] = self._by_name[application.name] = application
        self._rights[application.id] = NOTHING if application.closed else Rights.of(application.allowed)

    def _forget(self, application: ApplicationRow) -> None:
        for kept in (self._by_id, self._rights):
            kept.pop(application.id, None)
        self._by_name.pop(application.name, None)
        if application.digest is not None:
            self._by_digest.pop(application.digest, None)
