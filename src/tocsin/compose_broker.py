"""Where the parts become a broker: beside `compose`, so that a broker starts without the cluster's engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tocsin.broker.accounts.accounts import LIMITS
from tocsin.broker.accounts.local import LocalAccounts
from tocsin.broker.accounts.policy import AccountPolicy
from tocsin.broker.app import RunningBroker, running
from tocsin.broker.cluster_link.broker_generation import BrokerGeneration
from tocsin.serving.application import serve
from tocsin.settings import BrokerSettings, Settings
from tocsin.store.broker import broker_backup
from tocsin.store.broker.files import file_of
from tocsin.store.broker.sqlite.store import SqliteBrokerStore
from tocsin.store.private_folder import make_private
from tocsin.wire.errors import FencedError


async def serve_broker(
    settings: Settings, on_ready: Callable[[str], None], trace: Path | None = None, *, take_over: bool = False
) -> None:
    """Run a broker until it is told to stop. Raises FencedError when another has taken its name over; `take_over`: it
    takes the name itself, whoever has it."""
    http, stop = settings.broker.http, asyncio.Event()
    fenced: list[FencedError] = []

    def on_fenced(future: asyncio.Future[FencedError]) -> None:
        if not future.cancelled():
            fenced.append(future.result())
            stop.set()

    @asynccontextmanager
    async def start(address: str) -> AsyncIterator[RunningBroker]:
        async with broker(settings, address, trace, take_over=take_over) as made:
            made.service.link.fenced.add_done_callback(on_fenced)
            yield made

    await serve(start, host=http.host, port=http.port, on_ready=on_ready, stop=stop)
    if fenced:
        raise fenced[0]


@asynccontextmanager
async def broker(
    settings: Settings, address: str, trace: Path | None = None, *, take_over: bool = False
) -> AsyncIterator[RunningBroker]:
    """A broker on its own store in the data folder, which nobody else may use meanwhile."""
    chosen = settings.broker
    make_private(settings.data)
    store = SqliteBrokerStore(broker_file(settings))
    await store.open()
    try:
        if take_over:
            await BrokerGeneration.renew(store)
        accounts = LocalAccounts(store, account_policy(chosen))
        await accounts.open()
        try:
            async with running(chosen, store, accounts, address=address, trace=trace) as made:
                yield made
        finally:
            await accounts.close()
    finally:
        await store.close()


async def back_up(settings: Settings, target: Path) -> None:
    """Saves what the broker of these settings keeps, whether it runs or not."""
    await broker_backup.save(broker_file(settings), target)


async def restore(settings: Settings, source: Path, *, named: bool) -> tuple[str, str | None]:
    """Brings it back, for a broker that does not run and has no file: the one of these settings where it is `named`
    there, or else the one that was saved. The name, and that of the one that was saved where it says so."""
    saved = broker_backup.name_in(source)
    name = settings.broker.name if named or saved is None else saved
    make_private(settings.data)
    await broker_backup.bring_back(source, settings.data / file_of(name))
    return name, saved


def broker_file(settings: Settings) -> Path:
    return settings.data / file_of(settings.broker.name)


def account_policy(settings: BrokerSettings) -> AccountPolicy:
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
