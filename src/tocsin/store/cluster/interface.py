"""The cluster's store: what must survive a power cut and is not data — the catalog, the tokens, a few facts.

    ClusterStore ── transaction() ─▶ Transaction     all of it or nothing, one at a time
          └──────── entries(), tokens(), facts(), removals()     the last committed state

Every backend keeps what is promised here; the contract suite (tests/contract/cluster_store) tries to break it.
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

# Chosen so that (kind, dataverse, name) still fits one index key of the narrowest server, 3,072 bytes at 4 a character.
KIND_LIMIT: Final = 16
DATAVERSE_LIMIT: Final = 128
NAME_LIMIT: Final = 600
BODY_LIMIT_BYTES: Final = 16 << 20

# The facts every store has from its creation on.
EPOCH: Final = "epoch"
CREATED_AT: Final = "created_at"


@dataclass(frozen=True, slots=True)
class CatalogRow:
    """One thing in the catalog. Ids grow in the order of creation and are never given twice."""

    kind: str
    dataverse: str
    name: str
    body: dict[str, Any]
    id: int


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A token as it is kept: the digest of its secret, never the secret."""

    id: int
    name: str
    digest: str
    role: str
    created_at: datetime
    revoked_at: datetime | None = None
    feeds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Removal:
    """Something beside the catalog that may be removed: what an unfinished CREATE made (`dropped_at` is None), or what
    a DROP left. `kind` and `name` say what: a dataset's or a feed's folder, or a channel's number."""

    kind: str
    name: str
    dropped_at: datetime | None = None


class StoreReads(Protocol):
    async def entries(self) -> list[CatalogRow]:
        """All catalog entries in the order of their creation; one that was replaced keeps its place."""

    async def entry(self, kind: str, dataverse: str, name: str) -> CatalogRow | None:
        """One entry. Names are compared character by character: case, accents and trailing blanks count."""

    async def tokens(self) -> list[TokenRow]:
        """All tokens in the order of their creation, revoked ones too."""

    async def facts(self) -> dict[str, Any]:
        """Everything `set_fact` said. `epoch` (int) and `created_at` (ISO 8601) are there from the first open."""

    async def removals(self) -> list[Removal]:
        """Everything that may be removed, in the order of its recording."""


class StoreTransaction(StoreReads, Protocol):
    """Reads see what this transaction wrote.

    An InputError (a name is taken, a body is too large) wrote nothing and leaves the transaction usable. Any other
    error dooms it: later calls raise it again, and so does leaving the block, which then commits nothing.
    """

    @property
    def committed(self) -> bool:
        """Whether the changes are durable. Only this tells a cancellation before the commit from one during it."""

    async def add_entry(self, kind: str, dataverse: str, name: str, body: dict[str, Any]) -> CatalogRow:
        """Raises ConflictError when (kind, dataverse, name) is taken. The body is JSON and comes back equal."""

    async def replace_entry(self, kind: str, dataverse: str, name: str, body: dict[str, Any]) -> CatalogRow:
        """Gives an entry another body; its id stays. Raises NotFoundError when there is none."""

    async def remove_entry(self, kind: str, dataverse: str, name: str) -> bool:
        """Whether there was one."""

    async def set_fact(self, name: str, value: Any) -> None:
        """The value is JSON and comes back equal."""

    async def add_removal(self, removal: Removal) -> None:
        """Records that this may be removed; an earlier record of the same thing goes."""

    async def forget_removal(self, kind: str, name: str) -> bool:
        """It is removed, or it stays after all. Whether it was recorded."""

    async def add_token(
        self, name: str, digest: str, role: str, created_at: datetime, feeds: tuple[str, ...] = ()
    ) -> TokenRow:
        """Raises ConflictError while another token of that name is not revoked, or when the digest is known."""

    async def revoke_token(self, token_id: int, revoked_at: datetime) -> bool:
        """Whether there was such a token and it was not revoked before."""


class ClusterStore(StoreReads, Protocol):
    """Reads outside a transaction see the last committed state and never wait for a transaction.

    Errors: StorageFullError when there is no room (nothing committed is lost, the store goes on once there is room);
    UnavailableError when somebody else holds the store, or it is closed; StoreError when it is damaged, not ours, or
    newer than this program.
    """

    @property
    def schema_version(self) -> int:
        """The version the stored data have. Known once the store is open."""

    async def open(self) -> None:
        """Creates the store if there is none, or brings an older one to the present version: wholly or not at all."""

    async def close(self) -> None:
        """Waits for the running transaction. May be called twice."""

    def transaction(self) -> AbstractAsyncContextManager[StoreTransaction]:
        """Commits at the end of the block; an exception or a cancellation inside it undoes everything.

        Transactions run one after the other, in the order they were asked for. When the block has ended without an
        error the changes survive kill -9 and a power cut. A cancellation that comes during the commit is raised when
        the commit is over: look at `committed`. A task cannot open a second one inside its first (RuntimeError).
        """

    async def backup_to(self, path: Path) -> None:
        """Writes a whole, checked copy of one committed state to a new file, while others read and write.

        The file appears complete or not at all; ConflictError when there is one already.
        """


def next_epoch(previous: int | None, now: datetime) -> int:
    """A store's epoch: later than the one before, whatever the clock says, and no two lives of a store share one.

    Two restores of one backup know nothing of each other, and the clock may have been set back between them: so the
    time has a random part. Below 2**53, which every client's JSON can say.
    """
    now_ms = int(now.timestamp() * 1000)
    return max(now_ms << 10, (previous or 0) + 1) + secrets.randbelow(1 << 20)


def check_key(kind: str, dataverse: str, name: str) -> None:
    """Refuses what not every backend could keep as a name."""
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
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise InputError(f"a {what} cannot contain NUL or half of a character pair: {text!r}")


def encode_json(value: Any) -> str:
    """JSON in ASCII: NUL and lone surrogates become escapes, which every backend keeps. Refuses NaN and huge texts."""
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
