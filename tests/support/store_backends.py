"""What the contract suites of the stores have in common: the kinds of store there are, and each kind's backends.

A suite is a folder that says in its conftest.py which kind it is of; every test in it runs on each backend. Another
backend is one more class beside `SqliteBackend` and one more name in `BACKENDS`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from tocsin.store.broker.sqlite.store import SqliteBrokerStore
from tocsin.store.channels.sqlite.store import SqliteChannelStore
from tocsin.store.cluster.sqlite_store import SqliteStore


@dataclass(frozen=True, slots=True)
class StoreKind:
    """One interface of a store. `small_bytes` has room for little, but for the tables and some rows."""

    sqlite: type[Any]
    file: str
    small_bytes: int


CLUSTER_STORE = StoreKind(SqliteStore, "cluster/store.sqlite", 400_000)
CHANNEL_STORE = StoreKind(SqliteChannelStore, "cluster/channels.db", 3_000_000)
BROKER_STORE = StoreKind(SqliteBrokerStore, "brokers/broker-east.db", 1_000_000)

Store = TypeVar("Store")


class StoreBackend(Protocol[Store]):
    """One place for the contents of a store."""

    def store(self) -> Store:
        """The same contents each time."""

    def small_store(self) -> Store:
        """The same contents, with room for little."""

    def of_backup(self, path: Path) -> Store:
        """What a backup holds."""

    def source(self) -> str:
        """How another process makes the same store: an expression, for which it has imported `importlib` and `Path`."""


class SqliteBackend(Generic[Store]):
    def __init__(self, kind: StoreKind, folder: Path) -> None:
        self._kind = kind
        self._path = folder / kind.file

    def store(self) -> Store:
        return self._kind.sqlite(self._path)

    def small_store(self) -> Store:
        return self._kind.sqlite(self._path, max_bytes=self._kind.small_bytes)

    def of_backup(self, path: Path) -> Store:
        return self._kind.sqlite(path)

    def source(self) -> str:
        made = self._kind.sqlite
        return f"importlib.import_module({made.__module__!r}).{made.__name__}(Path({str(self._path)!r}))"


BACKENDS: dict[str, Callable[[StoreKind, Path], StoreBackend[Any]]] = {"sqlite": SqliteBackend}


@asynccontextmanager
async def opened(store: Any) -> AsyncIterator[Any]:
    """The store, open; closed in the end, whatever happens."""
    await store.open()
    try:
        yield store
    finally:
        await store.close()
