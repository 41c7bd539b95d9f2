"""Whatever applications, their users and the operator do in whatever order: nobody reaches what is another's."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.support.examples import examples
from tocsin.broker.accounts.accounts import OPERATOR, ManagerIdentity, Principal, Session
from tocsin.broker.accounts.local import LocalAccounts
from tocsin.broker.accounts.policy import AccountPolicy, PasswordCost
from tocsin.rules.model.cursors import START
from tocsin.store.broker.rows import FrontendRow, NewBackendRow
from tocsin.store.broker.sqlite.store import SqliteBrokerStore
from tocsin.wire.errors import ConflictError, ForbiddenError, NotFoundError, UnauthorizedError
from tocsin.wire.subscriber import Credentials

Answer = TypeVar("Answer")

APPLICATIONS = ["default", "floods", "traffic"]
USERS = ["ann", "bob"]
GROUPS = ["crew", "staff"]
PASSWORDS = ["first secret", "second secret"]
POLICY = AccountPolicy(
    operator_token="op", open_registration=True, cost=PasswordCost(passes=1, memory_kib=8, lanes=1), token_s=100
)

applications = st.sampled_from(APPLICATIONS)
users = st.sampled_from(USERS)
groups = st.sampled_from(GROUPS)
passwords = st.sampled_from(PASSWORDS)
places = st.tuples(applications, users)


@dataclass
class Token:
    application: str
    user: str
    issued: int
    ended: bool = False


@dataclass
class AccountsModel:
    passwords: dict[tuple[str, str], str] = field(default_factory=dict)
    born: dict[tuple[str, str], int] = field(default_factory=dict)
    tokens: dict[str, Token] = field(default_factory=dict)
    members: dict[tuple[str, str], set[str]] = field(default_factory=dict)

    def is_good(self, token: Token, now: int) -> bool:
        at = (token.application, token.user)
        return not token.ended and at in self.born and token.issued > self.born[at] and now < token.issued + 100_000_000


class Tenants(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.runner = asyncio.Runner()
        self.model = AccountsModel()
        self.now_us = 1_794_000_000_000_000
        self.managers: dict[str, str] = {"default": "op"}
        self.do(self.begin())

    def clock(self) -> int:
        self.now_us += 1
        return self.now_us

    def do(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return self.runner.run(work)

    async def begin(self) -> None:
        self.store = SqliteBrokerStore(self.folder / "broker.db")
        await self.store.open()
        self.accounts = LocalAccounts(self.store, POLICY, self.clock)
        await self.accounts.open()
        for name in APPLICATIONS[1:]:
            if name not in self.managers:
                self.managers[name] = (await self.accounts.create_application(OPERATOR, name)).token
                made = await self.accounts.create_group(await self.accounts.who(self.managers[name]), "held")
                backends = [NewBackendRow(1, "v.c", "[]", "s", START)]
                await self.store.subscribe_group(made.group.id, 1, backends=backends, created_us=1)
                self.model.members[name, "held"] = set()

    def teardown(self) -> None:
        self.do(self.accounts.close())
        self.do(self.store.close())
        self.runner.close()
        shutil.rmtree(self.folder)

    def manager(self, application: str) -> Principal:
        return self.do(self.accounts.who(self.managers[application]))

    def check_owner(self, frontends: list[FrontendRow], application: str) -> None:
        id_ = self.do(self.accounts.application(OPERATOR, application)).id
        for each in frontends:
            found = self.do(self.store.subscriber_by_id(each.subscriber))
            assert found is None or found.application == id_

    @rule(at=places, password=passwords)
    def register(self, at: tuple[str, str], password: str) -> None:
        application, user = at
        try:
            self.do(self.accounts.register(self.manager(application), Credentials(user, password, application)))
        except ConflictError:
            assert at in self.model.passwords
            return
        assert at not in self.model.passwords
        self.model.passwords[at], self.model.born[at] = password, self.now_us

    @rule(at=places, password=passwords)
    def login(self, at: tuple[str, str], password: str) -> None:
        application, user = at
        issued = self.now_us + 1
        try:
            told = self.do(self.accounts.login(Credentials(user, password, application)))
        except UnauthorizedError:
            assert self.model.passwords.get(at) != password
            return
        assert self.model.passwords[at] == password
        self.model.tokens[told.token] = Token(application, user, issued)

    @rule(at=places, password=passwords, by=applications)
    def set_password(self, at: tuple[str, str], password: str, by: str) -> None:
        application, user = at
        try:
            self.do(self.accounts.set_password(self.manager(by), user, password, application))
        except ForbiddenError:
            assert by not in {application, "default"}
            return
        except NotFoundError:
            assert by in {application, "default"}
            assert at not in self.model.passwords
            return
        assert by in {application, "default"}
        self.model.passwords[at], self.model.born[at] = password, self.now_us

    @rule(at=places, by=applications)
    def remove(self, at: tuple[str, str], by: str) -> None:
        application, user = at
        try:
            removed = self.do(self.accounts.remove_subscriber(self.manager(by), user, application))
        except ForbiddenError:
            assert by not in {application, "default"}
            return
        except NotFoundError:
            assert at not in self.model.passwords
            return
        self.check_owner(removed.frontends, application)
        del self.model.passwords[at], self.model.born[at]
        for (of, _), members in self.model.members.items():
            if of == application:
                members.discard(user)

    @rule(data=st.data())
    def logout(self, data: st.DataObject) -> None:
        if self.model.tokens:
            token = data.draw(
                st.sampled_from(sorted(self.model.tokens, key=lambda each: self.model.tokens[each].issued))
            )
            try:
                who = self.do(self.accounts.who(token))
            except UnauthorizedError:
                return
            assert isinstance(who, Session)
            self.do(self.accounts.logout(who))
            self.model.tokens[token].ended = True

    @rule(seconds=st.sampled_from([30, 80]))
    def time_passes(self, seconds: int) -> None:
        self.now_us += seconds * 1_000_000

    @rule(application=applications, name=groups, chosen=st.lists(users, unique=True))
    def create_group(self, application: str, name: str, chosen: list[str]) -> None:
        try:
            self.do(self.accounts.create_group(self.manager(application), name, chosen))
        except ConflictError:
            assert (application, name) in self.model.members
        except NotFoundError:
            assert any((application, user) not in self.model.passwords for user in chosen)
        else:
            assert all((application, user) in self.model.passwords for user in chosen)
            self.model.members[application, name] = set(chosen)

    @rule(
        application=applications,
        by=applications,
        name=st.sampled_from([*GROUPS, "held"]),
        user=users,
        joins=st.booleans(),
    )
    def change_members(self, application: str, by: str, name: str, user: str, joins: bool) -> None:
        call = self.accounts.add_members if joins else self.accounts.remove_members
        try:
            changed = self.do(call(self.manager(by), name, [user], application))
        except ForbiddenError:
            assert by not in {application, "default"}
            return
        except NotFoundError:
            assert (application, name) not in self.model.members or (application, user) not in self.model.passwords
            return
        assert by in {application, "default"}
        self.check_owner([*changed.made, *changed.gone], application)
        members = self.model.members[application, name]
        if joins:
            members.add(user)
        else:
            members.discard(user)

    @rule()
    def restart(self) -> None:
        self.do(self.accounts.close())
        self.do(self.store.close())
        self.do(self.begin())

    @invariant()
    def every_token_is_worth_what_it_should_be(self) -> None:
        for token, said in self.model.tokens.items():
            good = self.model.is_good(said, self.now_us + 1)
            try:
                who = self.do(self.accounts.who(token))
            except UnauthorizedError:
                assert not good
                continue
            assert good
            assert isinstance(who, Session)
            assert (who.application_name, who.user) == (said.application, said.user)
            self.sees_only_its_own(who)

    def sees_only_its_own(self, who: Session) -> None:
        mine = {
            name for (of, name), users in self.model.members.items() if of == who.application_name and who.user in users
        }
        assert {each.name for each in self.do(self.accounts.groups(who))} == mine
        for other in APPLICATIONS:
            for user in USERS:
                try:
                    found = self.do(self.accounts.subscriber(who, user, other))
                except ForbiddenError:
                    assert (other, user) != (who.application_name, who.user)
                else:
                    assert found.id == who.subscriber

    @invariant()
    def every_manager_sees_what_its_application_has(self) -> None:
        for application in APPLICATIONS[1:]:
            by = self.manager(application)
            assert isinstance(by, ManagerIdentity)
            people = {each.user for each in self.do(self.accounts.subscribers(by))}
            assert people == {user for of, user in self.model.passwords if of == application}
            names = {
                each.name: set(self.do(self.accounts.members(by, each.name)))
                for each in self.do(self.accounts.groups(by))
            }
            assert names == {name: who for (of, name), who in self.model.members.items() if of == application}
            assert [each.name for each in self.do(self.accounts.applications(by))] == [application]


Tenants.TestCase.settings = settings(
    max_examples=examples(12),
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
test_nobody_reaches_what_is_anothers = Tenants.TestCase
