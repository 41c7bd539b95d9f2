"""Groups of users that hold subscriptions together. Managers say who is in; members see theirs and may leave."""

from __future__ import annotations

from collections.abc import Sequence

from tocsin.broker.accounts.accounts import GroupChanged, Principal, Session
from tocsin.broker.accounts.directory import Directory
from tocsin.broker.accounts.policy import name_of, names_of
from tocsin.store.broker.rows import PAGE, ApplicationRow, GroupRow
from tocsin.wire.errors import ForbiddenError, NotFoundError


class Groups(Directory):
    async def create_group(
        self, by: Principal, name: str, members: Sequence[str] = (), application: str | None = None
    ) -> GroupChanged:
        of = self._scope(by, application)
        kept = name_of("name of a group", name)
        made = await self._store.add_group(
            of.id,
            kept,
            await self._ids(of, members),
            created_us=self._now_us(),
            at_most=self._limit(of, "groups"),
            members_at_most=self._limit(of, "members"),
        )
        return GroupChanged(made)

    async def add_members(
        self, by: Principal, name: str, members: Sequence[str], application: str | None = None
    ) -> GroupChanged:
        of = self._scope(by, application)
        group = await self._group(of, name)
        made = await self._store.add_members(
            group.id, await self._ids(of, members), created_us=self._now_us(), at_most=self._limit(of, "members")
        )
        return GroupChanged(group, made=made)

    async def remove_members(
        self, by: Principal, name: str, members: Sequence[str], application: str | None = None
    ) -> GroupChanged:
        if isinstance(by, Session):
            group = await self.group(by, name, application)
            if names_of("user's name", members) != [by.user]:
                raise ForbiddenError("a member may take out nobody but itself", hint="use the application's token")
            return GroupChanged(group, gone=await self._store.remove_members(group.id, [by.subscriber]))
        of = self._scope(by, application)
        group = await self._group(of, name)
        found = await self._store.find_subscribers(of.id, names_of("user's name", members))
        gone = await self._store.remove_members(group.id, [each.id for each in found])
        return GroupChanged(group, gone=gone)

    async def remove_group(self, by: Principal, name: str, application: str | None = None) -> GroupChanged:
        group = await self._group(self._scope(by, application), name)
        return GroupChanged(group, gone=await self._store.remove_group(group.id))

    async def groups(
        self, by: Principal, application: str | None = None, *, after: str = "", limit: int = PAGE
    ) -> list[GroupRow]:
        if isinstance(by, Session):
            self._own(by.application, application)
            mine = await self._store.groups_of(by.subscriber)
            return [each for each in mine if each.name > after][:limit]
        return await self._store.groups(self._scope(by, application).id, after=after, limit=limit)

    async def group(self, by: Principal, name: str, application: str | None = None) -> GroupRow:
        if not isinstance(by, Session):
            return await self._group(self._scope(by, application), name)
        self._own(by.application, application)
        kept = name_of("name of a group", name)
        for each in await self._store.groups_of(by.subscriber):
            if each.name == kept:
                return each
        # The same as for one that is not there.
        raise _no_group(kept)

    async def members(
        self, by: Principal, name: str, application: str | None = None, *, after: str = "", limit: int = PAGE
    ) -> list[str]:
        group = await self.group(by, name, application)
        return [each.user for each in await self._store.members(group.id, after=after, limit=limit)]

    async def _group(self, of: ApplicationRow, name: str) -> GroupRow:
        kept = name_of("name of a group", name)
        found = await self._store.group(of.id, kept)
        if found is None:
            raise _no_group(kept)
        return found

    async def _ids(self, of: ApplicationRow, users: Sequence[str]) -> list[int]:
        wanted = names_of("user's name", users)
        found = {each.user: each.id for each in await self._store.find_subscribers(of.id, wanted)}
        for user in wanted:
            if user not in found:
                raise NotFoundError(f"there is no user {user!r} of the application {of.name}")
        return [found[user] for user in wanted]


def _no_group(name: str) -> NotFoundError:
    return NotFoundError(f"there is no group {name!r}")
