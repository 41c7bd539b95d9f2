"""The channel store: interests and their subscriptions, executions and their results, and the positions of brokers.

    channel ── interest ── result          a result is stored once per interest, and found by its cursor
                  └─────── subscription    many share an interest; each belongs to a broker

The catalog (ClusterStore) lists the channels; this store keeps their rows under the number that it gave out. Every
backend keeps the promises below; the contract suite (tests/contract/store/channels) tries to break them.

Each call is one transaction and durable when it returns (kill -9, power cut). A call that says that it works in steps
commits each step: other writers run between two steps, and the caller can repeat an interrupted call. Reads see the
last committed state and never wait for a writer. A cancellation during a write is raised when the write is complete.

Errors: NotFoundError if there is no such channel; StorageFullError if the disk is full (nothing committed is lost, and
the store continues once there is space); UnavailableError if another process holds the store, or it is closed;
StoreError if it is damaged, not a Tocsin store, or newer than this program.

Times are microseconds since 1970 (`_us`) and come from the caller.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, Protocol, TypeAlias

from tocsin.rules.model.cursors import Cursor, InterestId, Position, Range
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
NEW_RESULTS_LIMIT: Final = 100_000
CHUNK_BYTES: Final = 1 << 20
EXECUTIONS_KEPT: Final = 1_000

WhenTaken: TypeAlias = Literal["repeat", "refuse", "change"]
"""What `subscribe` does with an id that exists."""


class ChannelStore(Protocol):
    @property
    def schema_version(self) -> int:
        """The schema version of the stored data. Known once the store is open."""

    @property
    def epoch(self) -> int:
        """The present epoch of the store: new cursors and positions begin with it."""

    async def open(self) -> None:
        """Creates the store if there is none, or upgrades an older store, completely or not at all."""

    async def close(self) -> None:
        """Waits for running calls. May be called twice."""

    async def backup_to(self, path: Path) -> None:
        """Writes a complete, checked copy of a committed state to a new file, while others read and write.

        The file appears complete or not at all. Raises ConflictError if the file exists.
        """

    async def renew_epoch(self) -> int:
        """Begins a new epoch after a restore, greater than every epoch before. Execution numbers continue.

        Cursors and positions of earlier epochs sort before all new cursors and positions, even if this store never gave
        them out. The store forgets which processes own the brokers' names.
        """

    # --- channels

    async def add_channel(self, *, after: int = 0) -> int:
        """Returns a new channel number, greater than `after`; a number is never given out twice."""

    async def drop_channel(self, channel_id: int) -> None:
        """Drops the channel in steps, if it exists. After the first step no other caller sees it."""

    async def channel_ids(self) -> list[int]:
        """All channels in order, including those whose drop was interrupted and has to be repeated."""

    async def state(self, channel_id: int) -> ChannelState: ...

    # --- subscriptions and interests

    async def subscribe(
        self,
        channel_id: int,
        requests: Sequence[BackendRequest],
        *,
        created_us: int,
        interests_at_most: int | None = None,
        when_taken: WhenTaken = "repeat",
    ) -> list[SubscribeOutcome]:
        """Makes all subscriptions or none. The outcomes have the order of the requests.

        If an id exists, "repeat" gives the same answer as the first time if parameters and broker are the same, and
        raises ConflictError otherwise; "refuse" raises ConflictError; "change" is like `change_subscription`, and then
        an id may occur only once. Raises LimitError if an application would hold more interests, in all channels, than
        it may.
        """

    async def unsubscribe(self, channel_id: int, ids: Sequence[str]) -> UnsubscribeOutcome:
        """Removes those of these subscriptions that exist. Readers stop seeing results of ended interests at once."""

    async def change_subscription(
        self,
        channel_id: int,
        subscription_id: str,
        broker: BrokerName,
        *,
        parameters: str | None = None,
        interests_at_most: int | None = None,
    ) -> SubscriptionRow:
        """Moves a subscription to another broker, or to the interest with other parameters, or both.

        With the same parameters, `since` and the acknowledged cursor stay: the new broker has to fetch what the old
        broker had not acknowledged. With others, the subscription gets the results of later executions, as if it were
        new. The new broker is notified of later results only.

        Raises NotFoundError if there is no such subscription, and LimitError as `subscribe` does.
        """

    async def subscription(self, channel_id: int, subscription_id: str) -> SubscriptionRow | None: ...

    async def subscriptions(self, channel_id: int, *, after: str = "", limit: int = PAGE) -> list[SubscriptionRow]:
        """A page of subscriptions in the order of ids (by code point), beginning after the id `after`."""

    async def subscriptions_of(
        self, broker: BrokerName, *, after: tuple[int, str] = (0, ""), limit: int = PAGE
    ) -> list[SubscriptionRow]:
        """A page of a broker's subscriptions in the order of (channel_id, id), beginning after `after`."""

    async def holders(
        self,
        broker: BrokerName,
        channel_id: int,
        interests: Sequence[InterestId],
        *,
        after: str = "",
        limit: int = PAGE,
    ) -> list[SubscriptionRow]:
        """A page of a broker's subscriptions to these interests of a channel in the order of ids, beginning after the
        id `after`. The result is empty if the channel or the broker does not exist.
        """

    def interests(self, channel_id: int) -> AsyncIterator[InterestChunk]:
        """All interests in chunks. Interests that begin or end meanwhile may be missing: read the changes
        afterwards.
        """

    async def interest_changes(self, channel_id: int, since: int, *, limit: int = CHANGES) -> InterestChanges | None:
        """Interests added and removed since the change numbered `since`, at a cost proportional to their number.

        Returns None if that is too long ago: read all interests again.
        """

    # --- executions

    async def commit_execution(
        self,
        channel_id: int,
        execution: Execution,
        interests: Sequence[InterestId],
        payloads: Sequence[bytes],
        *,
        matches_at_most: int | None = None,
    ) -> CommittedExecution:
        """Commits the results, the channel's commit vector, tick and last execution, and its announcement, all
        together.

        `payloads[i]` is a result of `interests[i]`; their order is the order of an interest's ordinals. Results of
        interests that have ended, or that belong to another channel, are left out. Of an interest with more than
        `matches_at_most` results only the last ones stay, and its earlier results are removed: a fetch reports the
        gap. Raises ConflictError if the number is not the last number + 1.
        """

    async def record_failure(self, channel_id: int, failure: Failure) -> None:
        """Records a failed execution. It advances neither the vector nor the tick."""

    async def executions(self, channel_id: int, *, limit: int = PAGE) -> list[RecordedExecution]:
        """The stored executions, including failures; the latest to end comes first."""

    # --- results

    def fetch(self, ranges: Sequence[Range], *, chunk_bytes: int = CHUNK_BYTES) -> AsyncIterator[list[FetchedRange]]:
        """The results of all ranges, range by range, in cursor order, in chunks of about `chunk_bytes`.

        A chunk holds at least one result, even a large one. Every range is answered at least once, possibly without
        results. If retention removes results during the read, the answer reports them as a gap.
        """

    async def retain(
        self,
        channel_id: int,
        *,
        ended_before_us: int | None = None,
        max_bytes: int | None = None,
        executions: int = EXECUTIONS_KEPT,
    ) -> int:
        """Removes old data in steps: results of executions that ended before `ended_before_us`; then the oldest
        results until `max_bytes` holds, but never those of the newest execution with results; executions without
        results beyond the newest `executions`; and the remains of interests that have ended. Returns the number of
        results removed.

        If several applications (of brokers) hold interests, they share `max_bytes`. Results of applications above the
        fair level go first, the largest application first. A result that an application below the level holds and has
        not acknowledged stays. A result counts for every application that holds its interest.

        Trimmed results and results of ended interests may stay on the disk, invisible, while they are the smaller part
        of their execution.
        """

    async def trim(self, channel_id: int, below: Mapping[InterestId, Cursor]) -> int:
        """Removes, in steps, the results of each interest up to and including its cursor. Returns their number."""

    async def delete_results(self, channel_id: int, results: Sequence[tuple[InterestId, Cursor]]) -> int:
        """Deletes those of these results that exist, all in one transaction. Returns their number.

        Readers of later results are not told of a gap. Cursors and positions stay valid: a fetch up to a deleted
        result ends without it. What was deleted is not announced any more.
        """

    # --- announcements of new results

    async def position(self) -> Position:
        """The position after everything committed so far."""

    async def dropped(self) -> int:
        """How many channels were ever dropped. When the number grows, holders check whether their subscriptions
        exist.
        """

    async def new_results(
        self, after: Position, *, broker: BrokerName | None = None, limit: int = NEW_RESULTS_LIMIT
    ) -> NewResultsPage:
        """Lists, in commit order, the interests held by the broker (or by any broker) with results after the position.

        `limit` bounds the number of results examined. An interest may appear again on a later page, with a later
        cursor.
        """

    async def acknowledge(self, broker: BrokerName, cursors: Mapping[InterestId, Cursor]) -> set[int]:
        """Records that the broker needs nothing up to these cursors, per interest. A cursor never moves back; unknown
        interests are ignored. Returns the channels of the known interests.
        """

    def lowest_acknowledged(self, channel_id: int) -> AsyncIterator[dict[InterestId, Cursor]]:
        """Yields per interest, in chunks, the cursor that all brokers have acknowledged: `trim` is safe up to there."""

    # --- registered brokers

    async def register(self, broker: BrokerName, secret: str, *, owner: str | None) -> Registration:
        """Registers the broker at the present position. Of an existing registration only an unknown owner changes."""

    async def claim(self, broker: BrokerName, claimant: BrokerClaim, secret: str) -> Registration:
        """Gives the name to the claiming process. A process that starts gets a generation greater than all before it,
        also greater than those of epochs that a restore ended. A process with the latest generation keeps it.

        A store that never had a generation takes the name over, and so does a store with a later generation than is
        known here. The new secret takes effect if another store, or none, had the name. Raises FencedError if another
        process has taken the name from the claimant, and NotFoundError if the broker is not registered.
        """

    async def renew_secret(self, broker: BrokerName, secret: str) -> None:
        """Replaces the secret. Raises NotFoundError if the broker is not registered."""

    async def registrations(self) -> list[Registration]:
        """All registrations, in the order of names."""

    async def registration(self, broker: BrokerName) -> Registration | None: ...

    async def record_position(self, broker: BrokerName, position: Position) -> Position:
        """Records that the broker knows everything up to this position, and returns the recorded position. It never
        moves back, nor beyond the last commit. Raises NotFoundError if the broker is not registered.
        """

    async def unregister(self, broker: BrokerName) -> None:
        """Ends the broker's subscriptions in all channels, in steps, and removes its registration, if it has one."""
