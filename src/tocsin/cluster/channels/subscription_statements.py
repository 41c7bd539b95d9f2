"""Executes SUBSCRIBE, UNSUBSCRIBE and CHANGE SUBSCRIPTION.

They differ from the requests of brokers only in where values come from: expressions, which may ask Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlglot import exp

from tocsin.cluster.catalog.catalog import CatalogStore
from tocsin.cluster.catalog.entries import ChannelEntry
from tocsin.cluster.channels.parameters import ParameterValues
from tocsin.cluster.channels.subscriptions import Subscriptions
from tocsin.cluster.engine.engine import Engine
from tocsin.cluster.statements.dml import decode_rows
from tocsin.cluster.statements.outcomes import StatementSummary
from tocsin.cluster.statements.statement_scope import StatementScope
from tocsin.language.functions.constants import ConstantError, NotConstantError, evaluate
from tocsin.language.syntax import statements as st
from tocsin.language.translate.expressions import TranslationError
from tocsin.store.channels.rows import BackendRequest, BrokerName
from tocsin.wire.errors import NotFoundError


class SubscriptionStatements:
    def __init__(self, catalog: CatalogStore, engine: Engine, subscriptions: Subscriptions) -> None:
        self._catalog = catalog
        self._engine = engine
        self._subscriptions = subscriptions

    async def subscribe(self, statement: st.SubscribeStatement, scope: StatementScope) -> StatementSummary:
        entry = self._entry(statement.channel, scope)
        broker = self._broker(statement.broker, scope)
        request = BackendRequest(await self._text(entry, statement.arguments, scope), broker)
        (subscription,) = await self._subscriptions.request(entry, [request])
        return {"subscription": subscription.id, "interest": subscription.interest}

    async def unsubscribe(self, statement: st.UnsubscribeStatement, scope: StatementScope) -> StatementSummary:
        entry = self._entry(statement.channel, scope)
        outcome = await self._subscriptions.unsubscribe(entry, [statement.subscription])
        if not outcome.removed:
            raise NotFoundError(
                f'the channel {entry.name} has no subscription "{statement.subscription}"',
                hint=f"{entry.subscriptions.name} has them; a DELETE there ends one only if it exists",
            )
        return {"subscription": statement.subscription}

    async def change_subscription(self, statement: st.ChangeSubscription, scope: StatementScope) -> StatementSummary:
        entry = self._entry(statement.channel, scope)
        broker = self._broker(statement.broker, scope)
        text = None if statement.arguments is None else await self._text(entry, statement.arguments, scope)
        try:
            changed = await self._subscriptions.change(entry, statement.subscription, broker, text)
        except NotFoundError as error:
            raise NotFoundError(error.message, hint=f"UPSERT INTO {entry.subscriptions.name} makes one") from None
        return {"subscription": changed.id, "broker": broker.name, "interest": changed.interest}

    async def _text(self, entry: ChannelEntry, arguments: Sequence[exp.Expr], scope: StatementScope) -> str:
        parameters = ParameterValues(entry.parameters, entry.types)
        return parameters.text(parameters.check([await self._value(argument, scope) for argument in arguments]))

    async def _value(self, node: exp.Expr, scope: StatementScope) -> Any:
        try:
            return evaluate(node, scope.now)
        except ConstantError as error:
            raise TranslationError(str(error), error.offset) from None
        except NotConstantError:
            pass

        def work() -> Any:
            translated = scope.translate(node)
            (value,) = decode_rows(self._engine.rows(translated.sql, 1), translated)
            return value

        return await self._engine.work(work)

    def _entry(self, name: st.Name, scope: StatementScope) -> ChannelEntry:
        return self._catalog.catalog.channel(name.dataverse or scope.dataverse, name.name)

    def _broker(self, name: st.Name, scope: StatementScope) -> BrokerName:
        entry = self._catalog.catalog.broker(name.dataverse or scope.dataverse, name.name)
        return BrokerName(entry.dataverse, entry.name)
