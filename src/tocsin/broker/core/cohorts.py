"""The subscriptions of an interest, and the cohorts of those that are served together.

A subscription whose subscriber is online and has been sent everything is in a cohort; there is one cohort per mode. The
members of a cohort share one marker as long as they acknowledge together; a member that acknowledges alone gets a
marker of its own. Shared markers make a delivery to thousands of subscribers as cheap as one to a single subscriber.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from typing import TYPE_CHECKING, final

from tocsin.broker.core.events import Mode
from tocsin.rules.model.cursors import START, Cursor, SubscriptionId

if TYPE_CHECKING:
    from tocsin.broker.core.interest_state import InterestState


class FrontendState:
    """A frontend subscription. `marker` is valid only outside a cohort; `acknowledged` always is."""

    __slots__ = (
        "attached", "behind", "cohort", "id", "interest", "interest_state", "joined", "live", "marker", "mode",
        "online", "sent", "since", "subscriber", "turn", "waits",
    )  # fmt: skip

    def __init__(
        self,
        name: SubscriptionId,
        subscriber: Hashable,
        state: InterestState,
        *,
        mode: Mode,
        since: Cursor | None,
        online: bool,
    ) -> None:
        self.id = name
        self.subscriber = subscriber
        self.interest = state.interest
        self.interest_state = state
        self.mode = mode
        # The cohort that it is in while it is online and has been sent everything.
        self.cohort = state.inline if mode is Mode.INLINE else state.notify
        self.since = since
        self.online = online
        # True once the broker has received results up to `since`; from then on the cache counts its marker.
        self.attached = False
        self.marker = START
        # How far results were sent while it catches up; a member of a cohort has been sent everything.
        self.sent = START
        self.live = False
        # The state number of its cohort when it joined.
        self.joined = 0
        self.behind = False
        # True while it waits for a fetch. `turn` changes when it stops waiting, so that a stale answer is recognised.
        self.waits = False
        self.turn = 0

    @property
    def acknowledged(self) -> Cursor:
        """The cursor up to which it has acknowledged, inside or outside a cohort."""
        return self.cohort.own.get(self.id, self.cohort.marker) if self.live else self.marker


@final
class CohortSnapshot(Collection[SubscriptionId]):
    """The members of a cohort that shared its marker at one moment. They pull and acknowledge as one.

    A snapshot does not change; `current` says whether the same members still share the marker.
    """

    __slots__ = ("cohort", "names", "state")

    def __init__(self, cohort: Cohort, names: tuple[SubscriptionId, ...]) -> None:
        self.cohort = cohort
        self.names = names
        self.state = cohort.state

    @property
    def current(self) -> bool:
        return self.state == self.cohort.state

    def still_there(self) -> tuple[SubscriptionId, ...]:
        """The members that have stayed in the cohort since the snapshot, without those that left and came back."""
        members, state = self.cohort.members, self.state
        return tuple(
            name for name in self.names if (member := members.get(name)) is not None and member.joined <= state
        )

    def __iter__(self) -> Iterator[SubscriptionId]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names


class Cohort(Collection[SubscriptionId]):
    """A collection of subscription ids. It lives as long as its interest and changes with every event."""

    __slots__ = ("_together", "marker", "members", "own", "state")

    def __init__(self, marker: Cursor) -> None:
        self.marker = marker
        self.members: dict[SubscriptionId, FrontendState] = {}
        # The markers of members that acknowledged alone.
        self.own: dict[SubscriptionId, Cursor] = {}
        # Changes whenever the set of members that share the marker changes.
        self.state = 0
        self._together: CohortSnapshot | None = None

    def __iter__(self) -> Iterator[SubscriptionId]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)

    def __contains__(self, name: object) -> bool:
        return name in self.members

    @property
    def sharing(self) -> int:
        return len(self.members) - len(self.own)

    @property
    def together(self) -> CohortSnapshot:
        """The members that share the marker now; the same object as long as they are the same."""
        snapshot = self._together
        if snapshot is None or snapshot.state != self.state:
            own = self.own
            names = tuple([name for name in self.members if name not in own]) if own else tuple(self.members)
            snapshot = self._together = CohortSnapshot(self, names)
        return snapshot

    def marker_of(self, name: SubscriptionId) -> Cursor:
        return self.own.get(name, self.marker)

    def join(self, frontend: FrontendState) -> None:
        """Adds a subscription; it shares the marker if its own is the same."""
        members, own, marker = self.members, self.own, frontend.marker
        if len(members) == len(own):
            # No member shares the marker, so the new member sets it.
            self.marker = marker
        elif marker != self.marker:
            own[frontend.id] = marker
        members[frontend.id] = frontend
        self.state = frontend.joined = self.state + 1
        frontend.live = True

    def leave(self, frontend: FrontendState) -> None:
        """Removes a subscription; it takes its marker with it."""
        own = self.own
        frontend.marker = own.pop(frontend.id, self.marker) if own else self.marker
        del self.members[frontend.id]
        self.state += 1
        frontend.live = False

    def move(self, name: SubscriptionId, to: Cursor) -> None:
        """A single member acknowledges."""
        if name in self.own:
            if to == self.marker and self.sharing:
                del self.own[name]
                self.state += 1
            else:
                self.own[name] = to
        elif self.sharing == 1:
            self.marker = to
        else:
            self.own[name] = to
            self.state += 1

    def move_several(self, names: Collection[SubscriptionId], to: Cursor) -> dict[Cursor, int]:
        """Some members acknowledge; returns how many came from each marker. Members that are further stay.

        If at least half of the sharing members move, the shared marker moves with them, and the others get markers of
        their own.
        """
        moved: dict[Cursor, int] = {}
        own, marker = self.own, self.marker
        sharers: list[SubscriptionId] = []
        for name in names:
            own_marker = own.get(name)
            if own_marker is None:
                if marker < to:
                    sharers.append(name)
            elif own_marker < to:
                moved[own_marker] = moved.get(own_marker, 0) + 1
                own[name] = to
        if sharers:
            moved[marker] = moved.get(marker, 0) + len(sharers)
            if 2 * len(sharers) >= self.sharing:
                moving = set(sharers)
                staying = [name for name in self.members if name not in own and name not in moving]
                own.update(dict.fromkeys(staying, marker))
                self.marker = to
            else:
                own.update(dict.fromkeys(sharers, to))
        self._merge()
        self.state += 1
        return moved

    def move_together(self, to: Cursor) -> None:
        """All members that share the marker acknowledge. Members with an own marker at `to` share it again."""
        self.marker = to
        self._merge()

    def move_all(self, to: Cursor) -> dict[Cursor, int]:
        """All members acknowledge; returns how many came from each marker."""
        moved: dict[Cursor, int] = {}
        if self.sharing and self.marker < to:
            moved[self.marker] = self.sharing
        if not self.own:
            self.marker = max(self.marker, to)
            return moved
        for marker in self.own.values():
            if marker < to:
                moved[marker] = moved.get(marker, 0) + 1
        self.state += 1
        if self.marker <= to or not self.sharing:
            self.own = {name: marker for name, marker in self.own.items() if marker > to}
            self.marker = to
        else:
            self.own = {name: max(marker, to) for name, marker in self.own.items()}
        return moved

    def _merge(self) -> None:
        """Drops own markers that equal the shared marker."""
        own = self.own
        if own and self.marker in own.values():
            self.own = {name: marker for name, marker in self.own.items() if marker != self.marker}
            self.state += 1
