"""The channel store: interests and who holds them, executions and their results, and how far brokers have come.

    channel ── interest ── result          a result is kept once per interest, and found by its cursor
                  └─────── subscription    many share an interest; each belongs to a broker

The catalog (ClusterStore) says which channels there are; this store keeps their rows, under the number it gave out.
Every backend keeps what is promised here; the contract suite (tests/contract/channel_store) tries to break it.

Each call is one transaction, durable when it returns (kill -9, power cut), unless it says that it works in steps: then
each step is one, others write between two of them, and a call that was interrupted can be made again. Reads see the
last committed state and never wait for a writer. A cancellation during a write is raised when the write is over.

Errors: NotFoundError for a channel that is not there; StorageFullError when there is no room (nothing committed is
lost, the store goes on once there is room); UnavailableError when somebody else holds the store, or it is closed;
StoreError when it is damaged, not ours, or newer than this program.

Times are microseconds since 1970 (`_us`) and come from the caller.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from tocsin.rules.model.cursors import Cursor, Position, Range
from tocsin.store.channels.rows import (
    BackendRequest,
    BrokerClaim,
    BrokerName,
    ChannelState,
    CommittedExecution,
    Execution,
    Failure,
    FetchedRange,
    InterestChanges,
    InterestChunk,
    NewResultsPage,
    RecordedExecution,
    Registration,
    SubscribeOutcome,
    SubscriptionRow,
    UnsubscribeOutcome,
)

PAGE: Final = 1_000
CHANGES: Final = 100_000
NEWS: Final = 100_000
CHUNK_BYTES: Final = 1 << 20
EXECUTIONS_KEPT: Final = 1_000


class ChannelStore(Protocol):
    @property
    def schema_version(self) -> int:
        """The version the stored data have. Known once the store is open."""

    @property
    def epoch(self) -> int:
        """The present life of the store, which cursors and positions made from now on begin with."""

    async def open(self) -> None:
        """Creates the store if there is none, or brings an older one to the present version: wholly or not at all."""

    async def close(self) -> None:
        """Waits for what runs. May be called twice."""

    async def backup_to(self, path: Path) -> None:
        """Writes a whole, checked copy of one committed state to a new file, while others read and write.

        The file appears complete or not at all; ConflictError when there is one already.
        """

    async def renew_epoch(self) -> int:
        """Begins a new life, after a restore: greater than every epoch before. Execution numbers go on.

        Cursors and positions of earlier lives keep their place before everything that comes now, also those that this
        store never gave out. Which processes have the brokers' names is forgotten.
        """

    # --- channels

    async def add_channel(self, *, after: int = 0) -> int:
        """A number for a channel, greater than `after`, never given twice."""

    async def drop_channel(self, channel_id: int) -> None:
        """In steps; to everybody else the channel is gone after the first. Nothing happens when it is not there."""

    async def channel_ids(self) -> list[int]:
        """All channels, in order; those too whose dropping was interrupted, which want to be dropped again."""

    async def state(self, channel_id: int) -> ChannelState: ...

    # --- subscriptions and interests

    async def subscribe(
        self,
        channel_id: int,
        wanted: Sequence[BackendRequest],
        *,
        created_us: int,
        interests_at_most: int | None = None,
    ) -> list[SubscribeOutcome]:
        """All or none, answered in the order asked.

        An id that is there with the same parameters and broker is answered as the first time; with others
        ConflictError. LimitError where an application would hold more interests, in all channels, than it may.
        """

    async def unsubscribe(self, channel_id: int, ids: Sequence[str]) -> UnsubscribeOutcome:
        """All of these that are there. Results of interests that went are gone to all readers at once."""

    async def change_broker(self, channel_id: int, subscription_id: str, broker: BrokerName) -> SubscriptionRow:
        """`since` stays, and so does what is not acknowledged: the new broker is taken to lack what the old one did.

        Raises NotFoundError when there is no such subscription. News tell the new broker of later results only.
        """

    async def subscription(self, channel_id: int, subscription_id: str) -> SubscriptionRow | None: ...

    async def subscriptions(self, channel_id: int, *, after: str = "", limit: int = PAGE) -> list[SubscriptionRow]:
        """A page in the order of ids (by code point), those greater than `after`."""

    async def subscriptions_of(
        self, broker: BrokerName, *, after: tuple[int, str] = (0, ""), limit: int = PAGE
    ) -> list[SubscriptionRow]:
        """A page of a broker's, in the order of (channel_id, id), those greater than `after`."""

    def interests(self, channel_id: int) -> AsyncIterator[InterestChunk]:
        """All interests in chunks. Those that come or go meanwhile may be in it or not: the changes tell."""

    async def interest_changes(self, channel_id: int, since: int, *, limit: int = CHANGES) -> InterestChanges | None:
        """What came and went since the change numbered `since`, at a cost proportional to it.

        None when that is too long ago: read all interests again.
        """

    # --- executions

    async def commit_execution(
        self,
        channel_id: int,
        execution: Execution,
        interests: Sequence[int],
        payloads: Sequence[bytes],
        *,
        matches_at_most: int | None = None,
    ) -> CommittedExecution:
        """Results, the channel's vector, tick and last execution, and the news of it: together.

        `payloads[i]` is a result of `interests[i]`; the order given is the order of an interest's ordinals. Results of
        interests that went meanwhile, or are not this channel's, are left out. Of an interest with more results than
        `matches_at_most` the last so many are kept, and whatever it had before is gone: who fetches is told of the gap.
        Raises ConflictError when the number is not the last one + 1.
        """

    async def record_failure(self, channel_id: int, failure: Failure) -> None:
        """Advances nothing."""

    async def executions(self, channel_id: int, *, limit: int = PAGE) -> list[RecordedExecution]:
        """Those kept, failed ones too, the one that ended last first."""

    # --- results

    def fetch(self, ranges: Sequence[Range], *, chunk_bytes: int = CHUNK_BYTES) -> AsyncIterator[list[FetchedRange]]:
        """The results of all ranges, range after range, in cursor order, in chunks of about `chunk_bytes`.

        A chunk holds at least one result, however large. Every range is answered at least once, maybe with nothing.
        What retention removes while the reader takes its time is told as a gap, too.
        """

    async def retain(
        self,
        channel_id: int,
        *,
        ended_before_us: int | None = None,
        max_bytes: int | None = None,
        executions: int = EXECUTIONS_KEPT,
    ) -> int:
        """Removes, in steps: results of executions that ended before; then the oldest until `max_bytes` holds, but
        never those of the newest with results; executions without results beyond the newest so many; and what
        interests that went have left. How many results went.

        Where several applications (of brokers) hold interests, `max_bytes` is shared: those go first that count for
        applications with more than the fair level of it, the largest first, and none that one below it holds and has
        not acknowledged. A result counts for all who hold its interest.

        What was trimmed or belonged to interests that went may stay on the disk, unseen, while it is the smaller part
        of its execution.
        """

    async def trim(self, channel_id: int, below: Mapping[int, Cursor]) -> int:
        """Removes, in steps, of each of these interests the results up to and with the cursor. How many."""

    # --- news

    async def position(self) -> Position:
        """After everything committed so far."""

    async def dropped(self) -> int:
        """How many channels were dropped, ever: whoever holds subscriptions looks for theirs when there are more."""

    async def news(self, after: Position, *, broker: BrokerName | None = None, limit: int = NEWS) -> NewResultsPage:
        """Which interests that a broker (or any) holds have results after this position, in the order of commits.

        `limit` bounds the results looked at. An interest may come again on a later page, with a later cursor.
        """

    async def acknowledge(self, broker: BrokerName, cursors: Mapping[int, Cursor]) -> set[int]:
        """The broker needs nothing up to these cursors, per interest. Never goes back; unknown interests are passed
        over. The channels that the others are of."""

    def lowest_acknowledged(self, channel_id: int) -> AsyncIterator[dict[int, Cursor]]:
        """Per interest, in chunks, what all of its brokers have acknowledged: below this `trim` harms nobody."""

    # --- brokers that are told

    async def register(self, broker: BrokerName, secret: str, *, owner: str | None) -> Registration:
        """What is there already stays, but for an owner where none is known. A new one begins at the present
        position."""

    async def claim(self, broker: BrokerName, claimant: BrokerClaim, secret: str) -> Registration:
        """The name is the claimant's: a process that starts gets a generation greater than every one before, also
        those of lives of the store that a restore has ended; one that has the latest keeps it.

        A store that was never given a generation takes the name over, and so does one that was given a later one than
        is known here. The secret is the new one where another store had the name, or none. Raises FencedError for
        whoever the name was taken from, NotFoundError when the broker is not registered.
        """

    async def renew_secret(self, broker: BrokerName, secret: str) -> None:
        """Raises NotFoundError when it is not registered."""

    async def registrations(self) -> list[Registration]:
        """All of them, in the order of names."""

    async def registration(self, broker: BrokerName) -> Registration | None: ...

    async def told(self, broker: BrokerName, position: Position) -> Position:
        """The broker knows everything up to this position. Never goes back, nor beyond what was committed; where it
        stands now. Raises NotFoundError when it is not registered."""

    async def unregister(self, broker: BrokerName) -> None:
        """In steps: its subscriptions end, in all channels, and it is forgotten. May be called for one that is not
        there."""
