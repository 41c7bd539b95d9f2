"""Groups of users that hold subscriptions together. Managers choose the members; members see their groups and may
leave.

A group has subscriptions of its own, so that a new member needs no request per channel and one who leaves loses exactly
what came through the group.
"""

from __future__ import annotations

from collections.abc import Sequence

from tocsin.broker.accounts.accounts import GroupChanged, Principal, Session
from tocsin.broker.accounts.directory import Directory
from tocsin.broker.accounts.policy import name_of, names_of
from tocsin.store.broker.rows import PAGE, ApplicationRow, GroupRow
from tocsin.wire.errors import ForbiddenError, NotFoundError


class Groups:
    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._store = directory.store

    async def create_group(
        self, by: Principal, name: str, members: Sequence[str] = (), application: str | None = None
    ) -> GroupChanged:
        application_row = self._directory.scope(by, application)
        group_name = name_of("name of a group", name)
        group = await self._store.add_group(
            application_row.id,
            group_name,
            await self._ids(application_row, members),
            created_us=self._directory.now_us(),
            at_most=self._directory.limit(application_row, "groups"),
            members_at_most=self._directory.limit(application_row, "members"),
        )
        return GroupChanged(group)

    async def add_members(
        self, by: Principal, name: str, members: Sequence[str], application: str | None = None
    ) -> GroupChanged:
        application_row = self._directory.scope(by, application)
        group = await self._group(application_row, name)
        frontends = await self._store.add_members(
            group.id,
            await self._ids(application_row, members),
            created_us=self._directory.now_us(),
            at_most=self._directory.limit(application_row, "members"),
        )
        return GroupChanged(group, made=frontends)

    async def remove_members(
        self, by: Principal, name: str, members: Sequence[str], application: str | None = None
    ) -> GroupChanged:
        if isinstance(by, Session):
            group = await self.group(by, name, application)
            if names_of("user's name", members) != [by.user]:
                raise ForbiddenError("a member may take out nobody but itself", hint="use the application's token")
            return GroupChanged(group, gone=await self._store.remove_members(group.id, [by.subscriber]))
        application_row = self._directory.scope(by, application)
        group = await self._group(application_row, name)
        subscribers = await self._store.find_subscribers(application_row.id, names_of("user's name", members))
        frontends = await self._store.remove_members(group.id, [subscriber.id for subscriber in subscribers])
        return GroupChanged(group, gone=frontends)

    async def remove_group(self, by: Principal, name: str, application: str | None = None) -> GroupChanged:
        group = await self._group(self._directory.scope(by, application), name)
        return GroupChanged(group, gone=await self._store.remove_group(group.id))

    async def groups(
        self, by: Principal, application: str | None = None, *, after: str = "", limit: int = PAGE
    ) -> list[GroupRow]:
        if isinstance(by, Session):
            self._directory.own(by.application, application)
            own_groups = await self._store.groups_of(by.subscriber)
            return [group for group in own_groups if group.name > after][:limit]
        return await self._store.groups(self._directory.scope(by, application).id, after=after, limit=limit)

    async def group(self, by: Principal, name: str, application: str | None = None) -> GroupRow:
        if not isinstance(by, Session):
            return await self._group(self._directory.scope(by, application), name)
        self._directory.own(by.application, application)
        group_name = name_of("name of a group", name)
        for group in await self._store.groups_of(by.subscriber):
            if group.name == group_name:
                return group
        # The same error as for a group that does not exist, so that existence is not revealed.
        raise _no_group(group_name)

    async def members(
        self, by: Principal, name: str, application: str | None = None, *, after: str = "", limit: int = PAGE
    ) -> list[str]:
        group = await self.group(by, name, application)
        return [member.user for member in await self._store.members(group.id, after=after, limit=limit)]

    async def _group(self, of: ApplicationRow, name: str) -> GroupRow:
        group_name = name_of("name of a group", name)
        group = await self._store.group(of.id, group_name)
        if group is None:
            raise _no_group(group_name)
        return group

    async def _ids(self, of: ApplicationRow, users: Sequence[str]) -> list[int]:
        names = names_of("user's name", users)
        ids = {subscriber.user: subscriber.id for subscriber in await self._store.find_subscribers(of.id, names)}
        for user in names:
            if user not in ids:
                raise NotFoundError(f"there is no user {user!r} of the application {of.name}")
        return [ids[user] for user in names]


def _no_group(name: str) -> NotFoundError:
    return NotFoundError(f"there is no group {name!r}")
