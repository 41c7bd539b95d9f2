"""The cluster's store: durable state that is not data — the catalog, the tokens, a few facts.

    ClusterStore ── transaction() ─▶ Transaction     all of it or nothing, one at a time
          └──────── entries(), tokens(), facts(), removals()     the last committed state

Every backend keeps the promises below; the contract suite (tests/contract/store/cluster) tries to break them.
"""

from __future__ import annotations

import json
import secrets
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol

from tocsin.wire.errors import InputError, LimitError

# (kind, dataverse, name) must fit an index key of the narrowest database server: 3,072 bytes at 4 per character.
KIND_LIMIT: Final = 16
DATAVERSE_LIMIT: Final = 128
NAME_LIMIT: Final = 600
BODY_LIMIT_BYTES: Final = 16 << 20

# The facts that every store has from its creation on.
EPOCH: Final = "epoch"
CREATED_AT: Final = "created_at"


@dataclass(frozen=True, slots=True)
class CatalogRow:
    """An entry of the catalog. Ids grow in the order of creation and are never given out twice."""

    kind: str
    dataverse: str
    name: str
    body: dict[str, Any]
    id: int


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A token as the store keeps it: the digest of its secret, never the secret."""

    id: int
    name: str
    digest: str
    role: str
    created_at: datetime
    revoked_at: datetime | None = None
    feeds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Removal:
    """An object outside the catalog that may be removed: the product of an unfinished CREATE (`dropped_at` is None),
    or the remains of a DROP. `kind` and `name` identify it: the folder of a dataset or a feed, the number of a
    channel, or the full name of a broker.
    """

    kind: str
    name: str
    dropped_at: datetime | None = None


class StoreReads(Protocol):
    async def entries(self) -> list[CatalogRow]:
        """All catalog entries in the order of their creation; a replaced entry keeps its place."""

    async def entry(self, kind: str, dataverse: str, name: str) -> CatalogRow | None:
        """Returns an entry. Names are compared character by character: case, accents and trailing blanks count."""

    async def tokens(self) -> list[TokenRow]:
        """All tokens in the order of their creation, including revoked ones."""

    async def facts(self) -> dict[str, Any]:
        """All facts. `epoch` (int) and `created_at` (ISO 8601) exist from the first open."""

    async def removals(self) -> list[Removal]:
        """All objects that may be removed, in the order of their recording."""


class StoreTransaction(StoreReads, Protocol):
    """Reads see what this transaction wrote.

    A call that raises InputError (a name is taken, a body is too large) writes nothing and leaves the transaction
    usable. Any other error dooms the transaction: later calls and the end of the block raise it again, and nothing is
    committed.
    """

    @property
    def is_committed(self) -> bool:
        """Whether the changes are durable. Only this distinguishes a cancellation before the commit from one during
        it.
        """

    async def add_entry(self, kind: str, dataverse: str, name: str, body: dict[str, Any]) -> CatalogRow:
        """Raises ConflictError if (kind, dataverse, name) is taken. The body is JSON and comes back equal."""

    async def replace_entry(self, kind: str, dataverse: str, name: str, body: dict[str, Any]) -> CatalogRow:
        """Gives an entry another body; its id stays. Raises NotFoundError if there is no such entry."""

    async def remove_entry(self, kind: str, dataverse: str, name: str) -> bool:
        """Removes the entry. Returns whether it existed."""

    async def set_fact(self, name: str, value: Any) -> None:
        """Sets a fact. The value is JSON and comes back equal."""

    async def add_removal(self, removal: Removal) -> None:
        """Records that the object may be removed, in place of an earlier record of the same object."""

    async def forget_removal(self, kind: str, name: str) -> bool:
        """Deletes the record, because the object is removed or will stay. Returns whether there was a record."""

    async def add_token(
        self, name: str, digest: str, role: str, created_at: datetime, feeds: tuple[str, ...] = ()
    ) -> TokenRow:
        """Raises ConflictError if an unrevoked token has the name, or any token has the digest."""

    async def revoke_token(self, token_id: int, revoked_at: datetime) -> bool:
        """Returns whether the token existed and was not revoked before."""


class ClusterStore(StoreReads, Protocol):
    """Reads outside a transaction see the last committed state and never wait for a transaction.

    Errors: StorageFullError if the disk is full (nothing committed is lost, and the store continues once there is
    space); UnavailableError if another process holds the store, or it is closed; StoreError if it is damaged, not a
    Tocsin store, or newer than this program.
    """

    @property
    def schema_version(self) -> int:
        """The schema version of the stored data. Known once the store is open."""

    async def open(self) -> None:
        """Creates the store if there is none, or upgrades an older store, completely or not at all."""

    async def close(self) -> None:
        """Waits for the running transaction. May be called twice."""

    def transaction(self) -> AbstractAsyncContextManager[StoreTransaction]:
        """Commits at the end of the block; an exception or a cancellation inside the block undoes everything.

        Transactions run one after the other, in the order of their requests. When the block ends without an error, the
        changes survive kill -9 and a power cut. A cancellation during the commit is raised when the commit is
        complete: read `committed`. A task cannot open a second transaction inside its first (RuntimeError).
        """

    async def backup_to(self, path: Path) -> None:
        """Writes a complete, checked copy of a committed state to a new file, while others read and write.

        The file appears complete or not at all. Raises ConflictError if the file exists.
        """


def next_epoch(previous: int | None, now: datetime) -> int:
    """Makes a store's epoch: later than the previous epoch whatever the clock says, and different in every restore.

    Two restores of one backup know nothing of each other, and the clock may have been set back between them: the epoch
    therefore has a random part. It stays below 2**53, which JSON of every client can express.
    """
    now_ms = int(now.timestamp() * 1000)
    return max(now_ms << 10, (previous or 0) + 1) + secrets.randbelow(1 << 20)


def check_key(kind: str, dataverse: str, name: str) -> None:
    """Refuses names that some backend cannot store."""
    for what, text, limit in (
        ("kind", kind, KIND_LIMIT),
        ("dataverse", dataverse, DATAVERSE_LIMIT),
        ("name", name, NAME_LIMIT),
    ):
        check_text(what, text, limit)


def check_text(what: str, text: str, limit: int) -> None:
    if len(text) > limit:
        raise LimitError(
            f"a {what} of {len(text)} characters is too long: {text[:40]}…", hint=f"at most {limit}", status=400
        )
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise InputError(f"a {what} cannot contain NUL or half of a character pair: {text!r}")


def encode_json(value: Any) -> str:
    """JSON in ASCII: NUL and lone surrogates become escapes, which every backend stores. Refuses NaN and huge texts."""
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as problem:
        raise InputError(f"this cannot be kept as JSON: {problem}") from problem
    if len(text) > BODY_LIMIT_BYTES:
        raise LimitError(
            f"{len(text)} bytes are too many for one entry of the catalog", hint=f"at most {BODY_LIMIT_BYTES}"
        )
    return text


def decode_json(text: str) -> Any:
    return json.loads(text)
