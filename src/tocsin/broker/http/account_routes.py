"""HTTP routes of accounts: registration, login, and the management by applications and the operator.

Changes that end subscriptions run to their end even if the client leaves, so that accounts and core agree.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from aiohttp import web

from tocsin.broker.accounts.accounts import Accounts, GroupChanged, ManagerIdentity, Principal, Removed, Session
from tocsin.broker.http.requests import principal, token_of
from tocsin.broker.service import BrokerService
from tocsin.broker.transports.transport import Transport
from tocsin.clock import from_us
from tocsin.serving.addresses import address_key, client_address, is_forwarded
from tocsin.serving.answers import answer
from tocsin.serving.rate_limit import RateLimiter
from tocsin.serving.requests import check_query, positive_int, read_json, read_message
from tocsin.store.broker.rows import PAGE, ApplicationRights, ApplicationRow
from tocsin.wire.accounts import (
    Application,
    GroupMembers,
    GroupPage,
    GroupSubscription,
    ListedGroup,
    ListedSubscriber,
    NewApplication,
    NewGroup,
    PasswordChange,
    RightsChange,
    Subscriber,
)
from tocsin.wire.errors import ForbiddenError, UnauthorizedError
from tocsin.wire.messages import qualify
from tocsin.wire.subscriber import Credentials

_CREDENTIALS_BYTES: Final = 16 << 10


class AccountRoutes:
    """Routes for accounts. A removal or a change runs to its end even if the client disconnects."""

    def __init__(self, service: BrokerService, transports: Sequence[Transport]) -> None:
        self._service = service
        self._accounts: Accounts = service.accounts
        self._transports = transports
        limits = service.settings.limits
        self._logins = RateLimiter(limits.logins_per_s, limits.logins_burst, "logins from one address")

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/register", self._register),
            web.post("/v1/login", self._login),
            web.post("/v1/token", self._renew),
            web.post("/v1/logout", self._logout),
            web.get("/v1/subscribers", self._subscribers, allow_head=False),
            web.get("/v1/subscribers/{user}", self.subscriber, allow_head=False),
            web.delete("/v1/subscribers/{user}", self._remove_subscriber),
            web.put("/v1/subscribers/{user}/password", self._set_password),
            web.post("/v1/groups", self._create_group),
            web.get("/v1/groups", self._groups, allow_head=False),
            web.get("/v1/groups/{name}", self.group, allow_head=False),
            web.delete("/v1/groups/{name}", self._remove_group),
            web.post("/v1/groups/{name}/members", self._add_members),
            web.delete("/v1/groups/{name}/members/{user}", self._remove_member),
            web.delete("/v1/groups/{name}/subscriptions/{id}", self._unsubscribe_group),
            web.post("/v1/applications", self._create_application),
            web.get("/v1/applications", self._applications, allow_head=False),
            web.get("/v1/applications/{name}", self.application, allow_head=False),
            web.patch("/v1/applications/{name}", self._change_application),
            web.delete("/v1/applications/{name}", self._remove_application),
            web.post("/v1/applications/{name}/token", self._renew_application_token),
        ]

    async def _who(self, request: web.Request) -> Principal:
        return await principal(self._accounts, request)

    async def _session(self, request: web.Request) -> Session:
        return await self._service.identify(token_of(request))

    # --- subscribers, for themselves

    async def _register(self, request: web.Request) -> web.Response:
        origin = self._origin(request)
        credentials = await read_message(request, Credentials, limit_bytes=_CREDENTIALS_BYTES)
        by = await self._registrar(request)
        subscriber = await self._accounts.register(by, credentials, origin=origin)
        # An application's token registers into its own application, named or not.
        application = (
            by.application_name if isinstance(by, ManagerIdentity) and not by.is_operator else credentials.application
        )
        return answer({"user": subscriber.user, "application": application}, status=201)

    async def _registrar(self, request: web.Request) -> Principal | None:
        """The principal of the token. Without a token: the operator if the policy allows that, otherwise None."""
        try:
            return await self._who(request)
        except UnauthorizedError:
            if token_of(request) is not None:
                raise
        if self._service.settings.accounts.registration == "auto" and is_forwarded(request):
            raise ForbiddenError(
                "through a proxy not everybody may register here",
                hint="use the application's token; or set broker.accounts.registration to open",
            )
        return None

    async def _login(self, request: web.Request) -> web.Response:
        origin = self._origin(request)
        credentials = await read_message(request, Credentials, limit_bytes=_CREDENTIALS_BYTES)
        return answer((await self._accounts.login(credentials, origin=origin)).to_json())

    def _origin(self, request: web.Request) -> str:
        """The address that the request comes from; raises LimitError if it sends passwords too fast."""
        origin = address_key(client_address(request))
        self._logins.check(origin, time.monotonic())
        return origin

    async def _renew(self, request: web.Request) -> web.Response:
        return answer((await self._accounts.renew(await self._session(request))).to_json())

    async def _logout(self, request: web.Request) -> web.Response:
        who = await self._session(request)
        await self._accounts.logout(who)
        self._service.end_session(who)
        return answer({})

    # --- subscribers, for managers

    async def _subscribers(self, request: web.Request) -> web.Response:
        by, application = await self._managed_application(request, "after", "limit")
        limit = positive_int(request, "limit", PAGE, most=PAGE)
        after = request.query.get("after", "")
        rows = await self._accounts.subscribers(by, application, after=after, limit=limit)
        next_page = rows[-1].user if len(rows) == limit else None
        subscribers = [ListedSubscriber(row.user, from_us(row.created_us)).to_json() for row in rows]
        return answer({"subscribers": subscribers, "next": next_page})

    async def subscriber(self, request: web.Request) -> web.Response:
        by, application = await self._managed_application(request)
        subscriber = await self._accounts.subscriber(by, request.match_info["user"], application)
        page = await self._service.list_subscriptions(subscriber.id)
        webhook = await self._service.webhook(subscriber.id)
        described = Subscriber(
            subscriber.user,
            from_us(subscriber.created_us),
            online=self._service.is_online(subscriber.id),
            subscriptions=page.subscriptions,
            more=page.next is not None,
            webhook=None if webhook is None else webhook.url,
        )
        return answer(described.to_json())

    async def _remove_subscriber(self, request: web.Request) -> web.Response:
        by, application = await self._managed_application(request)

        async def whole() -> None:
            await self._end_removed(await self._accounts.remove_subscriber(by, request.match_info["user"], application))

        await self._service.finish(whole())
        return answer({})

    async def _set_password(self, request: web.Request) -> web.Response:
        by, application = await self._managed_application(request)
        change = await read_message(request, PasswordChange)
        # This checks passwords, too, so the rate limit of logins applies.
        origin = self._origin(request)
        changed = await self._accounts.set_password(
            by, request.match_info["user"], change.password, application, old=change.old, origin=origin
        )
        self._service.end_sessions(changed.id)
        return answer({})

    async def _end_removed(self, removed: Removed) -> None:
        """Ends the subscriptions, webhooks and connections of removed subscribers."""
        self._service.end_removed(removed)
        for transport in self._transports:
            await transport.forget(removed.subscribers)

    # --- groups

    async def _create_group(self, request: web.Request) -> web.Response:
        by, application = await self._managed_application(request)
        new = await read_message(request, NewGroup)
        changed = await self._change_group(lambda: self._accounts.create_group(by, new.name, new.members, application))
        return answer(NewGroup(changed.group.name, new.members).to_json(), status=201)

    async def _groups(self, request: web.Request) -> web.Response:
        by, application = await self._managed_application(request, "after", "limit")
        limit = positive_int(request, "limit", PAGE, most=PAGE)
        after = request.query.get("after", "")
        rows = await self._accounts.groups(by, application, after=after, limit=limit)
        next_page = rows[-1].name if len(rows) == limit else None
        groups = [ListedGroup(row.name, from_us(row.created_us)).to_json() for row in rows]
        return answer({"groups": groups, "next": next_page})

    async def group(self, request: web.Request) -> web.Response:
        by, application = await self._managed_application(request, "after")
        name, after = request.match_info["name"], request.query.get("after", "")
        group = await self._accounts.group(by, name, application)
        members = await self._accounts.members(by, name, application, after=after, limit=PAGE)
        group_subscriptions = await self._service.group_subscriptions(group)
        next_page = members[-1] if len(members) == PAGE else None
        subscriptions = tuple(
            GroupSubscription(subscription.public_id, subscription.interest, subscription.mode)
            for subscription in group_subscriptions
        )
        created_at = from_us(group.created_us)
        return answer(GroupPage(group.name, created_at, tuple(members), subscriptions, next_page).to_json())

    async def _remove_group(self, request: web.Request) -> web.Response:
        by, application = await self._managed_application(request)
        name = request.match_info["name"]
        await self._change_group(
            lambda: self._accounts.remove_group(by, name, application), f"the group {name} is gone"
        )
        return answer({})

    async def _add_members(self, request: web.Request) -> web.Response:
        by, application = await self._managed_application(request)
        added = await read_message(request, GroupMembers)
        name = request.match_info["name"]
        await self._change_group(lambda: self._accounts.add_members(by, name, added.members, application))
        return answer(added.to_json())

    async def _remove_member(self, request: web.Request) -> web.Response:
        by, application = await self._managed_application(request)
        name, user = request.match_info["name"], request.match_info["user"]
        reason = f"you are not in the group {name} any more"
        await self._change_group(lambda: self._accounts.remove_members(by, name, [user], application), reason)
        return answer({})

    async def _unsubscribe_group(self, request: web.Request) -> web.Response:
        by, application = await self._managed_application(request)
        group = await self._accounts.group(by, request.match_info["name"], application)
        await self._service.unsubscribe_group(group, request.match_info["id"])
        return answer({})

    async def _change_group(
        self, change: Callable[[], Awaitable[GroupChanged]], reason: str | None = None
    ) -> GroupChanged:
        """Performs a change of a group, and passes its subscriptions on to the core."""

        async def whole() -> GroupChanged:
            changed = await change()
            self._service.change_group(changed, reason)
            return changed

        return await self._service.finish(whole())

    # --- applications

    async def _create_application(self, request: web.Request) -> web.Response:
        by = await self._who(request)
        new = await read_message(request, NewApplication)
        rights = ApplicationRights(_full_names(new.channels), _full_names(new.feeds), new.limits)
        created = await self._accounts.create_application(by, new.name, rights)
        return answer(_application(created.application, created.token), status=201)

    async def _applications(self, request: web.Request) -> web.Response:
        return answer(
            {
                "applications": [
                    _application(application)
                    for application in await self._accounts.applications(await self._who(request))
                ]
            }
        )

    async def application(self, request: web.Request) -> web.Response:
        by = await self._who(request)
        return answer(_application(await self._accounts.application(by, request.match_info["name"])))

    async def _change_application(self, request: web.Request) -> web.Response:
        by, name = await self._who(request), request.match_info["name"]
        body = await read_json(request)
        change = RightsChange.parse(body)
        rights = {"channels": _full_names(change.channels), "feeds": _full_names(change.feeds), "limits": change.limits}
        changes: dict[str, Any] = {right: rights[right] for right in body}
        current = await self._accounts.application(by, name)

        async def whole() -> ApplicationRow:
            changed = await self._accounts.change_application(by, name, replace(current.allowed, **changes))
            if "channels" in changes:
                await self._service.end_outside(changed.id, changed.name)
            return changed

        return answer(_application(await self._service.finish(whole())))

    async def _remove_application(self, request: web.Request) -> web.Response:
        by, name = await self._who(request), request.match_info["name"]

        async def whole() -> None:
            async for removed in self._accounts.remove_application(by, name):
                await self._end_removed(removed)

        await self._service.finish(whole())
        return answer({})

    async def _renew_application_token(self, request: web.Request) -> web.Response:
        by = await self._who(request)
        renewed = await self._accounts.renew_application_token(by, request.match_info["name"])
        return answer(_application(renewed.application, renewed.token))

    async def _managed_application(self, request: web.Request, *known: str) -> tuple[Principal, str | None]:
        """The principal, and the application that the request is about; the operator may name any."""
        check_query(request, "application", *known)
        by, application = await self._who(request), request.query.get("application")
        if application is not None and by != ManagerIdentity(None) and application != by.application_name:
            raise ForbiddenError("this is another application's")
        return by, application


def _full_names(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else [qualify(name) for name in names]


def _application(row: ApplicationRow, token: str | None = None) -> dict[str, Any]:
    allowed = row.allowed
    return Application(
        row.name,
        None if allowed.channels is None else tuple(allowed.channels),
        None if allowed.feeds is None else tuple(allowed.feeds),
        dict(allowed.limits),
        row.subscribers,
        from_us(row.created_us),
        token,
    ).to_json()
