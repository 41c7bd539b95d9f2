"""The client of who manages subscribers: an application with its token, or the broker's operator.

async with Manager("http://127.0.0.1:8480", token) as manager:
    await manager.register("ann", "a good secret")
    await manager.create_group("crew", ["ann"])
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from ssl import SSLContext
from typing import Any, Final, Self

from tocsin.sdk.client import DEFAULT_URL
from tocsin.sdk.models import (
    Application,
    Group,
    Subscriber,
    parse_application,
    parse_group,
    parse_subscriber,
    part,
    whole_group,
)
from tocsin.sdk.session import BrokerSession
from tocsin.wire.subscriber import Credentials

_AT_ONCE: Final = 1_000
"""Users that a broker takes in one request."""
_SAME: Final[Any] = object()


class Manager:
    """One application's, by its token; the operator's, by its own, or without one where the broker asks for none.

    `application`: whose subscribers and groups the operator means, instead of those of `default`. `patience_s`: how
    long a request is tried again while the broker is away.
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
        # Shown with each request, not kept as a subscriber's, which would be renewed.
        self._door = BrokerSession(url, None, patience_s=patience_s, ssl=ssl)
        self._token = token
        self._application = application

    async def __aenter__(self) -> Self:
        self._door.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._door.close()

    # --- subscribers

    async def register(self, user: str, password: str) -> None:
        """ConflictError where there is one of that name."""
        credentials = Credentials(user, password).to_json()
        if self._application is None:
            del credentials["application"]
        else:
            credentials["application"] = self._application
        await self._ask("POST", "/v1/register", credentials)

    async def subscribers(self) -> list[Subscriber]:
        return [parse_subscriber(one) async for one in self._all("/v1/subscribers", "subscribers")]

    async def subscriber(self, user: str) -> Subscriber:
        """With what it holds, and whether it is there."""
        return parse_subscriber(await self._of("GET", f"/v1/subscribers/{part(user)}"))

    async def set_password(self, user: str, password: str) -> None:
        """For one who forgot it. All its tokens end."""
        await self._of("PUT", f"/v1/subscribers/{part(user)}/password", {"password": password})

    async def remove_subscriber(self, user: str) -> None:
        """With all it has."""
        await self._of("DELETE", f"/v1/subscribers/{part(user)}")

    # --- groups

    async def create_group(self, name: str, members: Iterable[str] = ()) -> Group:
        """With these users; where one is not there, none and no group."""
        first, *rest = _portions(members)
        await self._of("POST", "/v1/groups", {"name": name, "members": first})
        for some in rest:
            await self.add_members(name, some)
        return await self.group(name)

    async def groups(self) -> list[Group]:
        """Without their members and what they hold."""
        return [parse_group(one) async for one in self._all("/v1/groups", "groups")]

    async def group(self, name: str) -> Group:
        """With all its members, and what it holds."""
        return await whole_group(self._of, name)

    async def add_members(self, name: str, members: Iterable[str]) -> None:
        """They get what the group holds from now on."""
        for some in _portions(members):
            await self._of("POST", f"/v1/groups/{part(name)}/members", {"members": some})

    async def remove_members(self, name: str, members: Iterable[str]) -> None:
        """They lose what they held through the group alone. Who is no member is passed over."""
        for user in members:
            await self._of("DELETE", f"/v1/groups/{part(name)}/members/{part(user)}")

    async def unsubscribe_group(self, name: str, subscription: str) -> None:
        """By the id that `group` shows: it ends for all who hold it through the group alone."""
        await self._of("DELETE", f"/v1/groups/{part(name)}/subscriptions/{part(subscription)}")

    async def remove_group(self, name: str) -> None:
        """With what it holds."""
        await self._of("DELETE", f"/v1/groups/{part(name)}")

    # --- applications, for the operator

    async def create_application(
        self,
        name: str,
        *,
        channels: Sequence[str] | None = None,
        feeds: Sequence[str] | None = None,
        limits: Mapping[str, int] | None = None,
    ) -> Application:
        """Its `token` is told here, and never again."""
        asked = {"name": name, "channels": channels, "feeds": feeds, "limits": dict(limits or {})}
        return parse_application(await self._ask("POST", "/v1/applications", asked))

    async def applications(self) -> list[Application]:
        """All for the operator, and for an application itself."""
        return [parse_application(one) for one in (await self._ask("GET", "/v1/applications"))["applications"]]

    async def application(self, name: str) -> Application:
        return parse_application(await self._ask("GET", f"/v1/applications/{part(name)}"))

    async def change_application(
        self,
        name: str,
        *,
        channels: Sequence[str] | None = _SAME,
        feeds: Sequence[str] | None = _SAME,
        limits: Mapping[str, int] = _SAME,
    ) -> Application:
        """What is not given stays as it is. Subscriptions to channels that are no longer among them end."""
        given = {"channels": channels, "feeds": feeds, "limits": limits}
        said = {what: value for what, value in given.items() if value is not _SAME}
        return parse_application(await self._ask("PATCH", f"/v1/applications/{part(name)}", said))

    async def renew_application_token(self, name: str) -> Application:
        """A new `token`; the old one ends. Also by the application itself, whose manager is made anew with it."""
        return parse_application(await self._ask("POST", f"/v1/applications/{part(name)}/token"))

    async def remove_application(self, name: str) -> None:
        """With its subscribers and groups."""
        await self._ask("DELETE", f"/v1/applications/{part(name)}")

    # --- the broker, for the operator

    async def policies(self) -> dict[str, Any]:
        """The caching policies in force, and the figures of all that were."""
        said: dict[str, Any] = await self._ask("GET", "/v1/policies")
        return said

    async def choose_policies(self, **chosen: Any) -> dict[str, Any]:
        """Others from now on, such as `eviction="lru"`; what is not named stays as it is, and so does the content."""
        said: dict[str, Any] = await self._ask("PUT", "/v1/policies", chosen)
        return said

    # --- requests

    async def _all(self, path: str, what: str) -> AsyncIterator[Any]:
        after: dict[str, str] = {}
        while True:
            page = await self._of("GET", path, params=after)
            for one in page[what]:
                yield one
            if page["next"] is None:
                return
            after = {"after": page["next"]}

    async def _of(self, method: str, path: str, body: Any = None, *, params: Mapping[str, str] | None = None) -> Any:
        """What concerns one application."""
        of = {} if self._application is None else {"application": self._application}
        return await self._ask(method, path, body, params={**of, **(params or {})})

    async def _ask(self, method: str, path: str, body: Any = None, *, params: Mapping[str, str] | None = None) -> Any:
        return await self._door.call(method, path, body, token=self._token, params=params)


def _portions(members: Iterable[str]) -> list[list[str]]:
    """At least one, which may be empty."""
    users = [members] if isinstance(members, str) else list(members)
    return [users[at : at + _AT_ONCE] for at in range(0, len(users), _AT_ONCE)] or [[]]
