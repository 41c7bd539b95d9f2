"""Replaces a function, if everything that uses it still works with the new one.

The users are checked against the catalog as it will be, before it changes. Then running channels start anew with the
new body, from where they were.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from tocsin.cluster.catalog.catalog import Catalog, CatalogStore, Put
from tocsin.cluster.catalog.entries import ChannelEntry, FunctionEntry, ProcedureEntry
from tocsin.cluster.catalog.refs import Ref
from tocsin.cluster.engine.engine import Engine
from tocsin.cluster.statements.outcomes import StatementSummary
from tocsin.cluster.statements.statement_scope import StatementScope
from tocsin.language.channels.compiler import SharedQuery
from tocsin.language.syntax.script import parse_body
from tocsin.language.translate.expressions import TranslationError
from tocsin.language.translate.scope import NameScope
from tocsin.language.types.typed_sql import FunctionError, TypedSql
from tocsin.language.types.variant import values
from tocsin.rules.model import types as t
from tocsin.wire.errors import ConflictError, StatementError


class _ChannelUsers(Protocol):
    """The channels, as far as they depend on functions."""

    def compile_again(self, entry: ChannelEntry, catalog: Catalog) -> SharedQuery:
        """Compiles a channel's query with another catalog. Raises if the channel cannot continue with it."""
        ...

    async def restart(self, queries: Mapping[int, SharedQuery]) -> None:
        """Lets running channels continue with other queries, by their ids."""
        ...


class _ProcedureUsers(Protocol):
    """The procedures, as far as they depend on functions."""

    def check(self, entry: ProcedureEntry, scope: StatementScope) -> None:
        """Raises if the body does not work in this scope."""
        ...


class FunctionReplacement:
    def __init__(
        self, catalog: CatalogStore, engine: Engine, channels: _ChannelUsers, procedures: _ProcedureUsers
    ) -> None:
        self._catalog = catalog
        self._engine = engine
        self._channels = channels
        self._procedures = procedures

    async def replace(self, entry: FunctionEntry, scope: StatementScope) -> StatementSummary:
        existed = scope.catalog.find(entry.ref) is not None
        after = scope.catalog.with_(entry, replace=True)
        users = _all_users(after, entry.ref)
        queries = await self._engine.work(lambda: self._check(entry.ref, users, after, scope)) if users else {}
        if self._catalog.catalog is not scope.catalog:
            raise ConflictError(
                "the catalog has changed meanwhile; nothing was replaced", hint="run the statement again"
            )
        await self._catalog.apply([Put(entry, when_taken="replace")])
        await asyncio.shield(self._channels.restart(queries))
        return {"name": entry.name, "replaced": existed}

    def _check(
        self, function: Ref, users: Sequence[Ref], after: Catalog, scope: StatementScope
    ) -> dict[int, SharedQuery]:
        """Checks all users with the new function; returns the new queries of channels."""
        queries: dict[int, SharedQuery] = {}
        for ref in users:
            user = after.find(ref)
            try:
                match user:
                    case FunctionEntry(language="SQL"):
                        uses_of_body(user.parameters, user.body, scope.within(user.dataverse, after))
                    case ProcedureEntry():
                        self._procedures.check(user, scope.within(user.dataverse, after))
                    case ChannelEntry():
                        queries[user.channel_id] = self._channels.compile_again(user, after)
            except (TranslationError, FunctionError, StatementError, ConflictError) as error:
                hint = getattr(error, "hint", None)
                raise ConflictError(f"{function} cannot be replaced: {ref} would fail: {error}", hint=hint) from None
        return queries


def uses_of_body(parameters: Sequence[str], body: str, scope: StatementScope) -> tuple[Ref, ...]:
    """Translates a body with untyped parameters. This checks that all names exist, and returns what the body uses."""
    translator = scope.translator(defines_function=True)
    untyped = TypedSql(values.null(t.ANY), t.ANY)
    translator.frame = NameScope(dict.fromkeys(parameters, untyped))
    try:
        translator.statement(parse_body(body).copy())
    finally:
        scope.close()
    return tuple(Ref(kind, where, name) for kind, where, name in sorted(translator.uses))


def _all_users(catalog: Catalog, function: Ref) -> list[Ref]:
    """Returns the entries that use the function, directly or through other functions, each once."""
    found: dict[Ref, None] = {}
    pending = [function]
    while pending:
        for user in catalog.users_of(pending.pop()):
            if user not in found:
                found[user] = None
                pending += [user] if user.kind == "function" else []
    return list(found)
