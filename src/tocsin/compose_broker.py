"""Builds a broker from its parts.

This is not in `compose`, so that a broker starts without importing the cluster's engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tocsin.broker.accounts.local import LocalAccounts
from tocsin.broker.accounts.policy import LIMITS, AccountPolicy
from tocsin.broker.app import RunningBroker, make_age_clock, run_broker
from tocsin.broker.cluster_link.broker_generation import BrokerGeneration
from tocsin.serving.application import serve
from tocsin.serving.name_resolver import NameResolver
from tocsin.settings import BrokerSettings, Settings
from tocsin.store.broker import broker_backup
from tocsin.store.broker.files import file_of
from tocsin.store.broker.sqlite.store import SqliteBrokerStore
from tocsin.store.private_folder import make_private
from tocsin.wire.errors import FencedError


async def serve_broker(
    settings: Settings, on_ready: Callable[[str], None], trace: Path | None = None, *, take_over: bool = False
) -> None:
    """Runs a broker until it is stopped. Raises FencedError if another broker has taken over its name. With
    `take_over`, this broker takes the name itself, even if another broker has it."""
    http, stop = settings.broker.http, asyncio.Event()
    fenced: list[FencedError] = []

    def on_fenced(future: asyncio.Future[FencedError]) -> None:
        if not future.cancelled():
            fenced.append(future.result())
            stop.set()

    @asynccontextmanager
    async def start(address: str) -> AsyncIterator[RunningBroker]:
        async with broker(settings, address, trace, take_over=take_over) as running_broker:
            running_broker.parts.link.fenced.add_done_callback(on_fenced)
            yield running_broker

    await serve(start, host=http.host, port=http.port, on_ready=on_ready, stop=stop)
    if fenced:
        raise fenced[0]


@asynccontextmanager
async def broker(
    settings: Settings, address: str, trace: Path | None = None, *, take_over: bool = False,
    store_type: type[SqliteBrokerStore] = SqliteBrokerStore, resolver: NameResolver | None = None,
) -> AsyncIterator[RunningBroker]:  # fmt: skip
    """Runs a broker on its own store in the data folder. No other process may use the store meanwhile. `resolver` looks
    up the hosts of webhooks."""
    broker_settings = settings.broker
    make_private(settings.data)
    store = store_type(broker_file(settings))
    await store.open()
    try:
        if take_over:
            await BrokerGeneration.renew(store)
        age_us = make_age_clock()
        accounts = LocalAccounts(store, _account_policy(broker_settings), age_us=age_us)
        await accounts.open()
        try:
            async with run_broker(
                broker_settings, store, accounts, address=address, trace=trace, resolver=resolver, age_us=age_us
            ) as running_broker:
                yield running_broker
        finally:
            await accounts.close()
    finally:
        await store.close()


async def back_up(settings: Settings, target: Path) -> None:
    """Backs up the store of the broker of these settings, whether it runs or not."""
    await broker_backup.save(broker_file(settings), target)


async def restore(settings: Settings, source: Path, *, named: bool) -> tuple[str, str | None]:
    """Restores a broker from a backup; it must not run, and its file must not exist. Uses the configured name if one
    was given (`named`), else the name in the backup. Returns the name that it used, and the name in the backup or
    None."""
    saved_name = broker_backup.name_in(source)
    name = settings.broker.name if named or saved_name is None else saved_name
    make_private(settings.data)
    await broker_backup.restore_broker(source, settings.data / file_of(name))
    return name, saved_name


def broker_file(settings: Settings) -> Path:
    return settings.data / file_of(settings.broker.name)


def _account_policy(settings: BrokerSettings) -> AccountPolicy:
    accounts, limits = settings.accounts, settings.limits
    return AccountPolicy(
        operator_token=accounts.admin_token.get_secret_value(),
        everybody_operates=settings.everybody_operates,
        open_registration=settings.open_registration,
        token_s=accounts.token_s,
        session_s=accounts.session_s,
        password_characters=accounts.password_characters,
        threads=accounts.password_threads,
        waiting=accounts.password_waiting,
        wrong_passwords=limits.wrong_passwords_burst,
        wrong_passwords_per_hour=limits.wrong_passwords_per_hour,
        limits={name: getattr(limits, name) for name in LIMITS},
    )
