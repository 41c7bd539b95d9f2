"""The applications, all in memory, and the rules of who may manage which.

Every request asks for rights, so they must not cost a read of the store.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from tocsin.broker.accounts.accounts import OPERATOR, ManagerIdentity, Principal, Rights, Session
from tocsin.broker.accounts.policy import AccountPolicy, account_limit, name_of, normalize
from tocsin.clock import now_us
from tocsin.serving.tokens import PREFIX, digest
from tocsin.store.broker.interface import BrokerStore
from tocsin.store.broker.rows import ApplicationRow, SubscriberRow
from tocsin.wire.errors import ForbiddenError, NotFoundError, UnauthorizedError
from tocsin.wire.subscriber import DEFAULT_APPLICATION

APPLICATION_PREFIX: Final = f"{PREFIX}app_"
_REMEMBERED: Final = 20_000
_NOTHING: Final = Rights(frozenset(), frozenset())


class Directory:
    """What every part of the accounts needs: the store, the clock, the applications, and recently seen subscribers.

    One process owns the store, so memory and store agree; `put` and `forget` keep it so.
    """

    def __init__(self, store: BrokerStore, policy: AccountPolicy, clock_us: Callable[[], int] = now_us) -> None:
        self.store = store
        self.policy = policy
        self.now_us = clock_us
        self.by_id: dict[int, ApplicationRow] = {}
        self.by_name: dict[str, ApplicationRow] = {}
        self._by_digest: dict[str, int] = {}
        self._rights: dict[int, Rights] = {}
        self._operator = digest(policy.operator_token) if policy.operator_token else None
        self._seen: OrderedDict[int, SubscriberRow] = OrderedDict()
        self._changes = 0

    async def open(self) -> None:
        for application in await self.store.applications():
            self.put(application)

    def rights(self, application: int) -> Rights:
        return self._rights.get(application, _NOTHING)

    # --- authentication and scope

    def manager(self, token: str | None) -> ManagerIdentity | None:
        """The manager that this token authenticates, if it is a manager's."""
        if token is None:
            if self.policy.everybody_operates:
                return OPERATOR
            raise UnauthorizedError("this needs a token", hint="send the header Authorization: Bearer …")
        token_digest = digest(token)
        if self._operator is not None and hmac.compare_digest(token_digest, self._operator):
            return OPERATOR
        # A lookup by digest leaks nothing of the token through timing.
        application = self.by_id.get(self._by_digest.get(token_digest, 0))
        if application is not None and not application.closed:
            return ManagerIdentity(application.id, application.name)
        return None

    def require_operator(self, by: Principal) -> None:
        if not isinstance(by, ManagerIdentity) or not by.is_operator:
            raise ForbiddenError("only the operator may do this", hint="use the operator's token")

    def scope(self, by: Principal, application: str | None) -> ApplicationRow:
        """The application that `by` names and may manage."""
        if isinstance(by, Session):
            raise ForbiddenError("a subscriber may not do this", hint="use the application's token")
        if by.application is not None:
            return self.own(by.application, application)
        return self.get_application(DEFAULT_APPLICATION if application is None else application)

    def own(self, own: int, application: str | None) -> ApplicationRow:
        """The principal's own application; the error does not reveal whether another of that name exists."""
        own_application = self.by_id.get(own)
        if own_application is None or own_application.closed:
            raise ForbiddenError("the application of this token is being removed")
        if application is not None and normalize(application) != own_application.name:
            raise ForbiddenError(
                f"this reaches the application {own_application.name} only", hint="leave out the application"
            )
        return own_application

    def get_application(self, name: str) -> ApplicationRow:
        application = self.by_name.get(normalize(name))
        if application is None:
            raise NotFoundError(f"there is no application {name[:200]!r}")
        return application

    def limit(self, application: ApplicationRow, name: str) -> int:
        return account_limit(name, application.allowed.limits, self.policy.limits)

    # --- subscribers

    async def subscriber(self, id_: int) -> SubscriberRow | None:
        """The subscriber as it is now, mostly from memory."""
        subscriber = self._seen.get(id_)
        if subscriber is not None:
            self._seen.move_to_end(id_)
            return subscriber
        before = self._changes
        subscriber = await self.store.subscriber_by_id(id_)
        # A change during the read may have been missed, so do not cache the row then.
        if subscriber is not None and before == self._changes:
            self._seen[id_] = subscriber
            if len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)
        return subscriber

    async def user(self, application: ApplicationRow, user: str) -> SubscriberRow:
        subscriber = await self.store.subscriber(application.id, name_of("user's name", user))
        if subscriber is None:
            raise NotFoundError(f"there is no user {user[:200]!r} of the application {application.name}")
        return subscriber

    def forget_subscriber(self, subscriber: int) -> None:
        self._changes += 1
        self._seen.pop(subscriber, None)

    # --- applications

    def put(self, application: ApplicationRow) -> None:
        """Replaces the application in all indexes."""
        previous = self.by_id.get(application.id)
        if previous is not None and previous.digest is not None:
            self._by_digest.pop(previous.digest, None)
        if application.digest is not None:
            self._by_digest[application.digest] = application.id
        self.by_id[application.id] = self.by_name[application.name] = application
        self._rights[application.id] = _NOTHING if application.closed else Rights.of(application.allowed)

    def forget(self, application: ApplicationRow) -> None:
        for by_id in (self.by_id, self._rights):
            by_id.pop(application.id, None)
        self.by_name.pop(application.name, None)
        if application.digest is not None:
            self._by_digest.pop(application.digest, None)
