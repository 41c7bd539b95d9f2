"""The client for managing subscribers, groups and applications, with an application's or the operator's token.

async with Manager("http://127.0.0.1:8480", token) as manager:
    await manager.register("ann", "a good secret")
    await manager.create_group("crew", ["ann"])
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from ssl import SSLContext
from typing import Any, Final, Self

from tocsin.sdk.client import DEFAULT_URL
from tocsin.sdk.session import BrokerSession, quote_path, whole_group
from tocsin.wire.accounts import Application, Group, Subscriber
from tocsin.wire.subscriber import Credentials

_AT_ONCE: Final = 1_000
"""The largest number of users that a broker takes in one request."""
_SAME: Final[Any] = object()


class Manager:
    """Manages one application with its token, or the broker with the operator's (none if it needs none).

    `application`: the application that the operator manages, instead of `default`. `patience_s`: how long a request is
    retried while the broker is away.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        token: str | None = None,
        *,
        application: str | None = None,
        patience_s: float = 15.0,
        ssl: SSLContext | None = None,
    ) -> None:
        # The token is sent with each request; a session's own token would be renewed like a subscriber's.
        self._session = BrokerSession(url, None, patience_s=patience_s, ssl=ssl)
        self._token = token
        self._application = application

    async def __aenter__(self) -> Self:
        self._session.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._session.close()

    # --- subscribers

    async def register(self, user: str, password: str) -> None:
        """Registers a subscriber; raises ConflictError if the user exists."""
        credentials = Credentials(user, password).to_json()
        if self._application is None:
            del credentials["application"]
        else:
            credentials["application"] = self._application
        await self._ask("POST", "/v1/register", credentials)

    async def subscribers(self) -> list[Subscriber]:
        return [Subscriber.parse(fields) async for fields in self._all("/v1/subscribers", "subscribers")]

    async def subscriber(self, user: str) -> Subscriber:
        """A subscriber with its subscriptions, and whether it is online."""
        return Subscriber.parse(await self._of("GET", f"/v1/subscribers/{quote_path(user)}"))

    async def set_password(self, user: str, password: str) -> None:
        """Sets a new password, for a user who forgot it. All tokens of the user become invalid."""
        await self._of("PUT", f"/v1/subscribers/{quote_path(user)}/password", {"password": password})

    async def remove_subscriber(self, user: str) -> None:
        """Removes the subscriber with everything that it has."""
        await self._of("DELETE", f"/v1/subscribers/{quote_path(user)}")

    # --- groups

    async def create_group(self, name: str, members: Iterable[str] = ()) -> Group:
        """Creates a group with these users. If one of the first 1,000 does not exist, it creates no group."""
        first_batch, *further_batches = _portions(members)
        await self._of("POST", "/v1/groups", {"name": name, "members": first_batch})
        for batch in further_batches:
            await self.add_members(name, batch)
        return await self.group(name)

    async def groups(self) -> list[Group]:
        """All groups, without their members and subscriptions."""
        return [Group.parse(fields) async for fields in self._all("/v1/groups", "groups")]

    async def group(self, name: str) -> Group:
        """A group with all its members and subscriptions."""
        return await whole_group(self._of, name)

    async def add_members(self, name: str, members: Iterable[str]) -> None:
        """New members get the group's subscriptions from now on."""
        for batch in _portions(members):
            await self._of("POST", f"/v1/groups/{quote_path(name)}/members", {"members": batch})

    async def remove_members(self, name: str, members: Iterable[str]) -> None:
        """Removes members with the subscriptions that they had only through the group. Ignores other users."""
        for user in members:
            await self._of("DELETE", f"/v1/groups/{quote_path(name)}/members/{quote_path(user)}")

    async def unsubscribe_group(self, name: str, subscription: str) -> None:
        """Ends a group's subscription, by the id that `group` shows, for all who have it only through the group."""
        await self._of("DELETE", f"/v1/groups/{quote_path(name)}/subscriptions/{quote_path(subscription)}")

    async def remove_group(self, name: str) -> None:
        """Removes the group with its subscriptions."""
        await self._of("DELETE", f"/v1/groups/{quote_path(name)}")

    # --- applications, for the operator

    async def create_application(
        self,
        name: str,
        *,
        channels: Sequence[str] | None = None,
        feeds: Sequence[str] | None = None,
        limits: Mapping[str, int] | None = None,
    ) -> Application:
        """Creates an application. Its `token` is shown only in this answer."""
        request = {"name": name, "channels": channels, "feeds": feeds, "limits": dict(limits or {})}
        return Application.parse(await self._ask("POST", "/v1/applications", request))

    async def applications(self) -> list[Application]:
        """All applications for the operator; for an application, only itself."""
        return [Application.parse(fields) for fields in (await self._ask("GET", "/v1/applications"))["applications"]]

    async def application(self, name: str) -> Application:
        return Application.parse(await self._ask("GET", f"/v1/applications/{quote_path(name)}"))

    async def change_application(
        self,
        name: str,
        *,
        channels: Sequence[str] | None = _SAME,
        feeds: Sequence[str] | None = _SAME,
        limits: Mapping[str, int] = _SAME,
    ) -> Application:
        """Changes the given rights; the others stay. Subscriptions to channels that it may no longer use end."""
        rights = {"channels": channels, "feeds": feeds, "limits": limits}
        changes = {right: value for right, value in rights.items() if value is not _SAME}
        return Application.parse(await self._ask("PATCH", f"/v1/applications/{quote_path(name)}", changes))

    async def renew_application_token(self, name: str) -> Application:
        """Issues a new `token`; the old one becomes invalid, also for this Manager if it uses that token."""
        return Application.parse(await self._ask("POST", f"/v1/applications/{quote_path(name)}/token"))

    async def remove_application(self, name: str) -> None:
        """Removes the application with its subscribers and groups."""
        await self._ask("DELETE", f"/v1/applications/{quote_path(name)}")

    # --- the broker, for the operator

    async def policies(self) -> dict[str, Any]:
        """The caching policies in force, and the counters of every policy since the start."""
        policies: dict[str, Any] = await self._ask("GET", "/v1/policies")
        return policies

    async def choose_policies(self, **chosen: Any) -> dict[str, Any]:
        """Changes caching policies, such as `eviction="lru"`; other settings and the cached content stay."""
        policies: dict[str, Any] = await self._ask("PUT", "/v1/policies", chosen)
        return policies

    # --- requests

    async def _all(self, path: str, what: str) -> AsyncIterator[Any]:
        after: dict[str, str] = {}
        while True:
            page = await self._of("GET", path, params=after)
            for item in page[what]:
                yield item
            if page["next"] is None:
                return
            after = {"after": page["next"]}

    async def _of(self, method: str, path: str, body: Any = None, *, params: Mapping[str, str] | None = None) -> Any:
        """A request about one application."""
        scope = {} if self._application is None else {"application": self._application}
        return await self._ask(method, path, body, params={**scope, **(params or {})})

    async def _ask(self, method: str, path: str, body: Any = None, *, params: Mapping[str, str] | None = None) -> Any:
        return await self._session.call(method, path, body, token=self._token, params=params)


def _portions(members: Iterable[str]) -> list[list[str]]:
    """Splits the members into batches; at least one, which may be empty."""
    users = [members] if isinstance(members, str) else list(members)
    return [users[begin : begin + _AT_ONCE] for begin in range(0, len(users), _AT_ONCE)] or [[]]
