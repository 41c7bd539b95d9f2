"""The catalog: the schema objects that CREATE adds and DROP removes.

    CatalogStore ── apply([Put, Remove, …]) ─▶ store (one transaction) ─▶ the next Catalog
          └──────── catalog ─▶ Catalog       an immutable snapshot, which later changes do not affect

Names are case-sensitive: `Reports` and `reports` may both exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, TypeAlias, TypeVar

from tocsin.cluster.catalog.entries import (
    RESULTS,
    SUBSCRIPTIONS,
    BrokerEntry,
    CatalogEntry,
    ChannelEntry,
    DatasetEntry,
    DataverseEntry,
    FeedEntry,
    FunctionEntry,
    IndexEntry,
    ProcedureEntry,
    TypeEntry,
    channel_of,
)
from tocsin.cluster.catalog.entry_json import entry_from_json, entry_to_json
from tocsin.cluster.catalog.refs import (
    Ref,
    broker_ref,
    channel_ref,
    dataset_ref,
    dataverse_ref,
    feed_ref,
    function_ref,
    index_ref,
    join_names,
    list_some,
    procedure_ref,
    quote_name,
    split_names,
    type_ref,
)
from tocsin.cluster.data_folder.removals import Removals, RemovalStep, plan_removals
from tocsin.rules.did_you_mean import did_you_mean
from tocsin.store.cluster.interface import ClusterStore, StoreTransaction, check_text
from tocsin.wire.errors import ConflictError, InputError, NotFoundError, UnavailableError

DEFAULT: Final = "Default"
METADATA: Final = "Metadata"
_IDENTIFIER_LIMIT: Final = 128

_Found = TypeVar("_Found", bound=CatalogEntry)
_Overload = TypeVar("_Overload", bound=FunctionEntry | ProcedureEntry)

# These dataverses always exist; they are never stored and cannot be dropped.
_BUILT_IN: Final = tuple(DataverseEntry(name) for name in (METADATA, DEFAULT))


@dataclass(frozen=True, slots=True)
class Catalog:
    """One immutable state of the catalog: `with_` and `without` return the next state.

    Every entry lies in an existing dataverse, and everything that it uses exists: `with_` and `without` refuse other
    changes. The dataverses `Default` and `Metadata` always exist; nothing can be put into `Metadata`."""

    entries: Mapping[Ref, CatalogEntry]

    @staticmethod
    def empty() -> Catalog:
        return Catalog._of(())

    @staticmethod
    def _of(entries: Iterable[CatalogEntry]) -> Catalog:
        """Returns the catalog with these entries, in this order. They come from the store, so they are not checked
        again."""
        return Catalog(MappingProxyType({entry.ref: entry for entry in (*_BUILT_IN, *entries)}))

    @property
    def dataverses(self) -> tuple[DataverseEntry, ...]:
        return tuple(self._all(DataverseEntry))

    @property
    def types(self) -> tuple[TypeEntry, ...]:
        return tuple(self._all(TypeEntry))

    @property
    def datasets(self) -> tuple[DatasetEntry, ...]:
        return tuple(self._all(DatasetEntry))

    @property
    def feeds(self) -> tuple[FeedEntry, ...]:
        return tuple(self._all(FeedEntry))

    @property
    def indexes(self) -> tuple[IndexEntry, ...]:
        return tuple(self._all(IndexEntry))

    @property
    def functions(self) -> tuple[FunctionEntry, ...]:
        return tuple(self._all(FunctionEntry))

    @property
    def brokers(self) -> tuple[BrokerEntry, ...]:
        return tuple(self._all(BrokerEntry))

    @property
    def channels(self) -> tuple[ChannelEntry, ...]:
        return tuple(self._all(ChannelEntry))

    @property
    def procedures(self) -> tuple[ProcedureEntry, ...]:
        return tuple(self._all(ProcedureEntry))

    def find(self, ref: Ref) -> CatalogEntry | None:
        return self.entries.get(ref)

    def dataverse(self, name: str) -> DataverseEntry:
        return self._look_up(dataverse_ref(name), DataverseEntry)

    def type_(self, dataverse: str, name: str) -> TypeEntry:
        return self._look_up(type_ref(dataverse, name), TypeEntry)

    def dataset(self, dataverse: str, name: str) -> DatasetEntry:
        return self._look_up(dataset_ref(dataverse, name), DatasetEntry)

    def feed(self, dataverse: str, name: str) -> FeedEntry:
        return self._look_up(feed_ref(dataverse, name), FeedEntry)

    def index(self, dataverse: str, dataset: str, name: str) -> IndexEntry:
        return self._look_up(index_ref(dataverse, dataset, name), IndexEntry)

    def function(self, dataverse: str, name: str, arity: int) -> FunctionEntry:
        return self._look_up(function_ref(dataverse, name, arity), FunctionEntry)

    def broker(self, dataverse: str, name: str) -> BrokerEntry:
        return self._look_up(broker_ref(dataverse, name), BrokerEntry)

    def channel(self, dataverse: str, name: str) -> ChannelEntry:
        return self._look_up(channel_ref(dataverse, name), ChannelEntry)

    def procedure(self, dataverse: str, name: str, arity: int) -> ProcedureEntry:
        return self._look_up(procedure_ref(dataverse, name, arity), ProcedureEntry)

    def channel_behind(self, dataset: Ref) -> ChannelEntry | None:
        """Returns the channel whose subscriptions or results this dataset shows."""
        ref = channel_of(dataset)
        entry = None if ref is None else self.entries.get(ref)
        return entry if isinstance(entry, ChannelEntry) else None

    def not_found_error(self, ref: Ref) -> NotFoundError:
        """Returns the error that this entry does not exist, with a hint to a similar name."""
        if ref.kind != "dataverse" and dataverse_ref(ref.dataverse) not in self.entries:
            return self.not_found_error(dataverse_ref(ref.dataverse))
        if ref.kind == "dataset" and (channel := self.channel_behind(ref)) is not None:
            return NotFoundError(
                f"{ref} belongs to {channel.ref} and is no dataset of its own",
                hint="queries, INSERT, UPSERT, DELETE and CREATE INDEX take it",
            )
        if ref.kind == "dataset" and ref.dataverse == METADATA:
            return NotFoundError(f"there is no {ref} that a statement could change", hint="only queries take Metadata")
        peers = [entry for entry in self.entries.values() if entry.ref.kind == ref.kind]
        name = ref.name
        if ref.kind == "index":
            dataset, name = split_names(ref.name)
            holder = dataset_ref(ref.dataverse, dataset)
            if holder not in self.entries and self.channel_behind(holder) is None:
                return self.not_found_error(holder)
            peers = list(self.indexes_of(ref.dataverse, dataset))
        elif ref.kind in ("function", "procedure"):
            name, _, arity = ref.name.rpartition("@")
            kind = FunctionEntry if ref.kind == "function" else ProcedureEntry
            if overloads := self._overloads(kind, ref.dataverse, name):
                arities = " or ".join(str(overload.arity) for overload in overloads)
                return NotFoundError(f"there is no {ref}", hint=f"it takes {arities} arguments, not {arity}")
        local_names = [peer.name for peer in peers if ref.kind == "dataverse" or peer.ref.dataverse == ref.dataverse]
        other_dataverses = [peer.ref.dataverse for peer in peers if peer.name == name]
        hint = did_you_mean(name, local_names, write=quote_name)
        if hint is None and other_dataverses:
            hint = f"did you mean {join_names(other_dataverses[0], name)}?"
        return NotFoundError(f"there is no {ref}", hint=hint)

    def functions_named(self, dataverse: str, name: str) -> list[FunctionEntry]:
        return self._overloads(FunctionEntry, dataverse, name)

    def procedures_named(self, dataverse: str, name: str) -> list[ProcedureEntry]:
        return self._overloads(ProcedureEntry, dataverse, name)

    def _overloads(self, kind: type[_Overload], dataverse: str, name: str) -> list[_Overload]:
        overloads = [entry for entry in self._all(kind) if (entry.dataverse, entry.name) == (dataverse, name)]
        return sorted(overloads, key=lambda entry: entry.arity)

    def indexes_of(self, dataverse: str, dataset: str) -> list[IndexEntry]:
        return [index for index in self._all(IndexEntry) if (index.dataverse, index.dataset) == (dataverse, dataset)]

    def users_of(self, ref: Ref) -> list[Ref]:
        """Returns the entries that would break without this one, in order of creation. For a dataverse, returns the
        entries outside of it that use something inside."""
        if ref.kind == "dataverse":
            outside = (entry for entry in self.entries.values() if entry.ref.dataverse != ref.name)
            return [entry.ref for entry in outside if any(used.dataverse == ref.name for used in entry.uses)]
        entry = self.entries.get(ref)
        # An entry that reads a channel's results uses the channel.
        refs = {ref, entry.subscriptions, entry.results} if isinstance(entry, ChannelEntry) else {ref}
        return [entry.ref for entry in self.entries.values() if not refs.isdisjoint(entry.uses)]

    def with_(self, entry: CatalogEntry, *, replace: bool = False) -> Catalog:
        """Returns the catalog with this entry added or, with `replace`, in the place of the old one.

        Raises ConflictError if the name is taken, and NotFoundError if something that the entry uses does not exist. A
        type in use cannot be replaced, and a function cannot use itself, directly or through others."""
        ref = entry.ref
        if ref.dataverse == METADATA and ref != dataverse_ref(METADATA):
            raise ConflictError(f"{ref} cannot be made: the dataverse {METADATA} is reserved")
        if ref in self.entries and (not replace or ref.kind == "dataverse"):
            raise ConflictError(f"{ref} exists already")
        if replace and ref.kind == "type" and (users := self.users_of(ref)):
            raise ConflictError(f"{ref} cannot be replaced: it is used by {list_some(users)}")
        _check_names(entry)
        if not isinstance(entry, DataverseEntry):
            self.dataverse(ref.dataverse)
        if isinstance(entry, IndexEntry):
            dataset = dataset_ref(entry.dataverse, entry.dataset)
            if self.channel_behind(dataset) is None:
                self._look_up(dataset, DatasetEntry)
        self._check_uses(entry)
        self._check_shown(entry)
        return Catalog(MappingProxyType({**self.entries, ref: entry}))

    def without(self, ref: Ref) -> Catalog:
        """Returns the catalog without this entry and what belongs to it: indexes of a dataset, all of a dataverse.

        Raises NotFoundError, or ConflictError, which names the entries that still use it."""
        if ref not in self.entries:
            raise self.not_found_error(ref)
        if any(ref == built_in.ref for built_in in _BUILT_IN):
            raise ConflictError(f"{ref} cannot be dropped", hint="drop what is in it" if ref.name == DEFAULT else None)
        if users := self.users_of(ref):
            what = "something in it" if ref.kind == "dataverse" else "it"
            raise ConflictError(f"{ref} cannot be dropped: {what} is used by {list_some(users)}")
        removed_refs = {entry.ref for entry in self.entries_with(ref)}
        return Catalog(MappingProxyType({key: entry for key, entry in self.entries.items() if key not in removed_refs}))

    def entries_with(self, ref: Ref) -> list[CatalogEntry]:
        """Returns this entry and all entries that a drop removes with it."""
        match ref.kind:
            case "dataverse":
                return [entry for entry in self.entries.values() if entry.ref.dataverse == ref.name]
            case "dataset":
                return [self.entries[ref], *self.indexes_of(ref.dataverse, ref.name)]
            case "channel":
                datasets = (ref.name + SUBSCRIPTIONS, ref.name + RESULTS)
                indexes = [index for dataset in datasets for index in self.indexes_of(ref.dataverse, dataset)]
                return [self.entries[ref], *indexes]
            case _:
                return [self.entries[ref]]

    def _all(self, kind: type[_Found]) -> Iterator[_Found]:
        return (entry for entry in self.entries.values() if isinstance(entry, kind))

    def _look_up(self, ref: Ref, kind: type[_Found]) -> _Found:
        entry = self.entries.get(ref)
        if not isinstance(entry, kind):
            raise self.not_found_error(ref)
        return entry

    def _check_uses(self, entry: CatalogEntry) -> None:
        for used in entry.uses:
            # The datasets of `Metadata` are no entries: queries compute them from the catalog.
            is_known = used in self.entries or used == entry.ref or self.channel_behind(used) is not None
            if not is_known and used.dataverse != METADATA:
                raise NotFoundError(f"{entry.ref} uses {used}, and there is no such {used.kind}")
        visited: set[Ref] = set()
        pending = list(entry.uses)
        while pending:
            used = pending.pop()
            if used == entry.ref:
                raise ConflictError(f"{entry.ref} would use itself")
            if used not in visited and used in self.entries:
                visited.add(used)
                pending += self.entries[used].uses

    def _check_shown(self, entry: CatalogEntry) -> None:
        """A channel also appears as two datasets, so no other entry may have their names."""
        if isinstance(entry, ChannelEntry):
            for virtual_ref in (entry.subscriptions, entry.results):
                if virtual_ref in self.entries:
                    raise ConflictError(
                        f"{entry.ref} cannot be made: it would be seen as {virtual_ref}, which exists already",
                        hint="give the channel another name",
                    )
        elif isinstance(entry, DatasetEntry) and (channel := self.channel_behind(entry.ref)) is not None:
            raise ConflictError(f"{entry.ref} cannot be made: {channel.ref} is seen under that name")


@dataclass(frozen=True, slots=True)
class Put:
    """Adds this entry. If the name is taken: refuse, replace the old entry, or keep the old entry."""

    entry: CatalogEntry
    when_taken: Literal["refuse", "replace", "keep"] = "refuse"


@dataclass(frozen=True, slots=True)
class Remove:
    """Removes this entry with everything that belongs to it."""

    ref: Ref
    if_exists: bool = False


Change: TypeAlias = Put | Remove


class CatalogStore:
    """Keeps the catalog durable in the cluster's store. It applies changes one after another, and nothing else changes
    the entries."""

    def __init__(self, store: ClusterStore, removals: Removals | None = None) -> None:
        self._store = store
        self._lock = asyncio.Lock()
        self._catalog: Catalog | None = None
        self.removals = removals if removals is not None else Removals(store)

    @property
    def catalog(self) -> Catalog:
        """The current snapshot. Raises UnavailableError before `load`."""
        if self._catalog is None:
            raise UnavailableError("the catalog is not loaded yet")
        return self._catalog

    @property
    def backup_barrier(self) -> asyncio.Lock:
        """While a caller holds this lock, the catalog does not change."""
        return self._lock

    async def load(self) -> Catalog:
        async with self._lock:
            self._catalog = Catalog._of(entry_from_json(row) for row in await self._store.entries())
            return self._catalog

    async def apply(self, changes: Sequence[Change]) -> Catalog:
        """Applies all changes in one transaction, or none. Each change is checked against the catalog that the changes
        before it leave.

        The snapshot is replaced if and only if the changes are durable, even if the caller is cancelled meanwhile."""
        async with self._lock:
            next_catalog, steps = _plan(self.catalog, changes)
            if steps:
                before, after = self.catalog.entries.values(), next_catalog.entries.values()
                steps += plan_removals(before, after, self.removals.clock())
                transaction: StoreTransaction | None = None
                try:
                    async with self._store.transaction() as transaction:
                        for step in steps:
                            await step(transaction)
                finally:
                    if transaction is not None and transaction.is_committed:
                        self._catalog = next_catalog
            return next_catalog


def _plan(catalog: Catalog, changes: Sequence[Change]) -> tuple[Catalog, list[RemovalStep]]:
    steps: list[RemovalStep] = []
    for change in changes:
        match change:
            case Put(entry=entry, when_taken="keep") if entry.ref in catalog.entries:
                pass
            case Put(entry=entry, when_taken=when_taken):
                exists = entry.ref in catalog.entries
                catalog = catalog.with_(entry, replace=when_taken == "replace")
                steps.append(_write_step(entry, replace=exists))
            case Remove(ref=ref, if_exists=True) if ref not in catalog.entries:
                pass
            case Remove(ref=ref):
                removed_refs = [entry.ref for entry in catalog.entries_with(ref)] if ref in catalog.entries else []
                catalog = catalog.without(ref)
                steps += [_remove_step(removed_ref) for removed_ref in removed_refs]
    return catalog, steps


def _write_step(entry: CatalogEntry, *, replace: bool) -> RemovalStep:
    ref, body = entry.ref, entry_to_json(entry)
    if replace:
        return lambda tx: tx.replace_entry(ref.kind, ref.dataverse, ref.name, body)
    return lambda tx: tx.add_entry(ref.kind, ref.dataverse, ref.name, body)


def _remove_step(ref: Ref) -> RemovalStep:
    return lambda tx: tx.remove_entry(ref.kind, ref.dataverse, ref.name)


def _check_names(entry: CatalogEntry) -> None:
    names = entry.ref.dataverse, entry.name, *((entry.dataset,) if isinstance(entry, IndexEntry) else ())
    for name in names:
        check_text("name", name, _IDENTIFIER_LIMIT)
        if not name:
            raise InputError("a name cannot be empty")
