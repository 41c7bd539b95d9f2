"""Accounts in the broker's own store.

A login takes the same time for unknown and for known users, so that it reveals no names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from tocsin.broker.accounts.accounts import ManagerIdentity, Principal, Removed, Session
from tocsin.broker.accounts.applications import Applications
from tocsin.broker.accounts.directory import Directory
from tocsin.broker.accounts.groups import Groups
from tocsin.broker.accounts.passwords import LoginThrottle, Passwords
from tocsin.broker.accounts.policy import AccountPolicy, name_of, normalize, password_of
from tocsin.broker.accounts.sessions import Claims, SessionTokens
from tocsin.clock import from_us, now_us
from tocsin.store.broker.interface import BrokerStore
from tocsin.store.broker.rows import PAGE, ApplicationRow, SubscriberRow
from tocsin.wire.answers import LoginAnswer
from tocsin.wire.errors import ConflictError, ForbiddenError, InputError, LimitError, NotFoundError, UnauthorizedError
from tocsin.wire.subscriber import DEFAULT_APPLICATION, Credentials


class LocalAccounts:
    """`Accounts` on a `BrokerStore` that only this process has open. The caller opens and closes the store."""

    def __init__(
        self, store: BrokerStore, policy: AccountPolicy, clock_us: Callable[[], int] = now_us,
        passwords: Passwords | None = None, age_us: Callable[[], int] | None = None,
    ) -> None:  # fmt: skip
        self._store = store
        self._directory = Directory(store, policy, clock_us)
        self._tokens = SessionTokens(store, policy.token_s, policy.session_s, clock_us, age_us)
        self._passwords = passwords or Passwords(policy.cost, threads=policy.threads, waiting=policy.waiting)
        self._guesses = LoginThrottle(policy.wrong_passwords, policy.wrong_passwords_per_hour)
        self.rights = self._directory.rights
        # Applications and groups answer their own calls.
        self._applications = applications = Applications(self._directory)
        self.create_application = applications.create_application
        self.change_application = applications.change_application
        self.end_outside = applications.end_outside
        self.renew_application_token = applications.renew_application_token
        self.remove_application = applications.remove_application
        self.applications = applications.applications
        self.application = applications.application
        groups = Groups(self._directory)
        self.create_group = groups.create_group
        self.add_members = groups.add_members
        self.remove_members = groups.remove_members
        self.remove_group = groups.remove_group
        self.groups = groups.groups
        self.group = groups.group
        self.members = groups.members

    async def open(self) -> None:
        await self._directory.open()
        await self._applications.open()
        await self._tokens.open()
        await self._passwords.open()

    async def close(self) -> None:
        await self._passwords.close()

    # --- authentication

    async def who(self, token: str | None) -> Principal:
        manager = self._directory.manager(token)
        if manager is not None:
            return manager
        claims = self._tokens.read(token or "")
        subscriber = await self._directory.subscriber(claims.subscriber)
        application = None if subscriber is None else self._directory.by_id.get(subscriber.application)
        if (
            subscriber is None
            or application is None
            or application.closed
            or claims.issued_us < subscriber.tokens_from_us
        ):
            raise UnauthorizedError("this token is good no more", hint="log in again")
        return Session(
            subscriber.id,
            subscriber.user,
            application.id,
            application.name,
            claims.token_id,
            issued_us=claims.issued_us,
            expires_us=claims.expires_us,
            session_id=claims.session_id,
            began_us=claims.began_us,
        )

    # --- subscribers, for themselves

    async def register(
        self, by: Principal | None, credentials: Credentials, *, origin: str | None = None
    ) -> SubscriberRow:
        application = self._registration_scope(by, credentials.application)
        user = name_of("user's name", credentials.user)
        password = password_of(credentials.password, self._directory.policy.password_characters)
        # Check before the costly hash; the store makes the final check.
        if await self._store.subscriber(application.id, user) is not None:
            raise ConflictError(f"there is a user {user} already", hint="choose another name, or log in")
        return await self._store.add_subscriber(
            application.id,
            user,
            password=await self._passwords.hash(password, origin),
            created_us=self._directory.now_us(),
            at_most=self._directory.limit(application, "subscribers"),
        )

    async def login(self, credentials: Credentials, *, origin: str | None = None) -> LoginAnswer:
        issued_us = self._directory.now_us()
        subscriber = await self._find_claimed(credentials)
        password = password_of(credentials.password)
        hashed = None if subscriber is None else subscriber.password
        user = (normalize(credentials.application), normalize(credentials.user))
        with self._guesses.attempt(user, origin, issued_us) as attempt:
            attempt.right = await self._passwords.matches(password, hashed, origin)
        if not attempt.right or subscriber is None or hashed is None:
            raise UnauthorizedError("the user or the password is wrong")
        if self._passwords.is_outdated(hashed):
            # The login succeeds even if the hash cannot be updated.
            with contextlib.suppress(LimitError, NotFoundError):
                await self._store.change_subscriber(
                    subscriber.id, password=await self._passwords.hash(password, origin)
                )
                self._directory.forget_subscriber(subscriber.id)
        # A clock that was set back since the last password change must not lock users out.
        return self._login_answer(
            subscriber, self._tokens.issue(subscriber.id, max(issued_us, subscriber.tokens_from_us))
        )

    async def renew(self, session: Session) -> LoginAnswer:
        issued_us = self._directory.now_us()
        subscriber = await self._directory.subscriber(session.subscriber)
        if subscriber is None or session.issued_us < subscriber.tokens_from_us:
            raise UnauthorizedError("this token is good no more", hint="log in again")
        return self._login_answer(subscriber, self._tokens.renew(session, max(issued_us, subscriber.tokens_from_us)))

    async def logout(self, session: Session) -> None:
        await self._tokens.end(session.session_id)

    # --- subscribers, for managers

    async def subscribers(
        self, by: Principal, application: str | None = None, *, after: str = "", limit: int = PAGE
    ) -> list[SubscriberRow]:
        return await self._store.subscribers(self._directory.scope(by, application).id, after=after, limit=limit)

    async def subscriber(self, by: Principal, user: str, application: str | None = None) -> SubscriberRow:
        return await self._find_managed(by, user, application)

    async def set_password(
        self,
        by: Principal,
        user: str,
        password: str,
        application: str | None = None,
        *,
        old: str | None = None,
        origin: str | None = None,
    ) -> SubscriberRow:
        subscriber = await self._find_managed(by, user, application)
        new = password_of(password, self._directory.policy.password_characters)
        if isinstance(by, Session):
            with self._guesses.attempt((by.application_name, by.user), origin, self._directory.now_us()) as attempt:
                attempt.right = await self._passwords.matches(password_of(old or ""), subscriber.password, origin)
            if not attempt.right:
                raise UnauthorizedError("the old password is wrong")
        hashed = await self._passwords.hash(new, origin)
        # Always later than before, even if the clock was set back, so that tokens of the old password become invalid.
        tokens_from_us = max(self._directory.now_us(), subscriber.tokens_from_us + 1)
        await self._store.change_subscriber(subscriber.id, password=hashed, tokens_from_us=tokens_from_us)
        self._directory.forget_subscriber(subscriber.id)
        return subscriber

    async def remove_subscriber(self, by: Principal, user: str, application: str | None = None) -> Removed:
        subscriber = await self._find_managed(by, user, application)
        frontends = await self._store.remove_subscribers([subscriber.id])
        self._directory.forget_subscriber(subscriber.id)
        return Removed([subscriber.id], frontends)

    # --- helpers

    def _registration_scope(self, by: Principal | None, application: str) -> ApplicationRow:
        """The application into which this principal may register; raises ForbiddenError if there is none."""
        if isinstance(by, ManagerIdentity):
            if not by.is_operator and application == DEFAULT_APPLICATION:
                return self._directory.scope(by, None)
            return self._directory.scope(by, application)
        if not self._directory.policy.open_registration:
            raise ForbiddenError("not everybody may register here", hint="use the application's token")
        if application != DEFAULT_APPLICATION:
            raise ForbiddenError(f"not everybody may register but into {DEFAULT_APPLICATION}", hint="use its token")
        return self._directory.get_application(DEFAULT_APPLICATION)

    async def _find_claimed(self, credentials: Credentials) -> SubscriberRow | None:
        """The subscriber that the credentials name, if it exists."""
        application = self._directory.by_name.get(normalize(credentials.application))
        try:
            user = name_of("user's name", credentials.user)
        except InputError:
            return None
        # Query the store even if there is no such application, so that the answer takes the same time.
        subscriber = await self._store.subscriber(0 if application is None else application.id, user)
        return None if application is None or application.closed else subscriber

    async def _find_managed(self, by: Principal, user: str, application: str | None) -> SubscriberRow:
        """A subscriber that `by` manages, or `by` itself."""
        if isinstance(by, Session):
            own_application = self._directory.own(by.application, application)
            if name_of("user's name", user) != by.user:
                raise ForbiddenError("a subscriber reaches nobody but itself", hint="use the application's token")
            return await self._directory.user(own_application, by.user)
        return await self._directory.user(self._directory.scope(by, application), user)

    def _login_answer(self, subscriber: SubscriberRow, issued: tuple[str, Claims]) -> LoginAnswer:
        application = self._directory.by_id.get(subscriber.application)
        if application is None or application.closed:
            raise UnauthorizedError("the user or the password is wrong")
        token, claims = issued
        expires_at = from_us(claims.expires_us)
        return LoginAnswer(token, expires_at, subscriber.user, application.name)
