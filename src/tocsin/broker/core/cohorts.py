"""Who subscribes to an interest, and who of them is served together.

Everybody who is online and has been sent everything is in a cohort, one per mode. A cohort shares one marker as long as
its members acknowledge together; who acknowledges alone gets a marker of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from typing import TYPE_CHECKING, final

from tocsin.broker.core.events import Mode
from tocsin.rules.model.cursors import START, Cursor

if TYPE_CHECKING:
    from tocsin.broker.core.interest_state import InterestState


class FrontendState:
    """A subscriber's hold on an interest. `marker` counts only while it is in no cohort; `acknowledged` always."""

    __slots__ = (
        "attached", "backend", "behind", "cohort", "id", "interest", "joined", "live", "marker", "mode", "online",
        "sent", "since", "subscriber", "turn", "waits",
    )  # fmt: skip

    def __init__(
        self,
        name: Hashable,
        subscriber: Hashable,
        backend: InterestState,
        *,
        mode: Mode,
        since: Cursor | None,
        online: bool,
    ) -> None:
        self.id = name
        self.subscriber = subscriber
        self.interest = backend.interest
        self.backend = backend
        self.mode = mode
        # Where it is when it is online and lacks nothing that it was not told of.
        self.cohort = backend.inline if mode is Mode.INLINE else backend.notify
        self.since = since
        self.online = online
        # Its marker counts in the cache: the broker has come to where it begins.
        self.attached = False
        self.marker = START
        # How far it was sent results while it catches up; a member of a cohort was sent everything.
        self.sent = START
        self.live = False
        # In which state of its cohort it came in.
        self.joined = 0
        self.behind = False
        # It waits for a fetch. `turn` tells an answer that it no longer waits for from the present one.
        self.waits = False
        self.turn = 0

    @property
    def acknowledged(self) -> Cursor:
        """Its marker, in a cohort or not."""
        return self.cohort.own.get(self.id, self.cohort.marker) if self.live else self.marker


@final
class CohortSnapshot(Collection[Hashable]):
    """Those of a cohort who shared its marker at one moment. Asked for or acknowledged as one, they cost as one.

    It stays as it is; `current` says whether they still are those who share the marker.
    """

    __slots__ = ("cohort", "names", "state")

    def __init__(self, cohort: Cohort, names: tuple[Hashable, ...]) -> None:
        self.cohort = cohort
        self.names = names
        self.state = cohort.state

    @property
    def current(self) -> bool:
        return self.state == self.cohort.state

    def still_there(self) -> tuple[Hashable, ...]:
        """Who has not left since, not even to come back."""
        members, state = self.cohort.members, self.state
        return tuple(name for name in self.names if (one := members.get(name)) is not None and one.joined <= state)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names


class Cohort(Collection[Hashable]):
    """Iterates over the subscriptions' names. Lives as long as its interest and changes with every event."""

    __slots__ = ("_together", "marker", "members", "own", "state")

    def __init__(self, marker: Cursor) -> None:
        self.marker = marker
        self.members: dict[Hashable, FrontendState] = {}
        self.own: dict[Hashable, Cursor] = {}
        # Another number whenever other members share the marker.
        self.state = 0
        self._together: CohortSnapshot | None = None

    def __iter__(self) -> Iterator[Hashable]:
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
        """Those who share the marker now; the same object for as long as they are the same."""
        known = self._together
        if known is None or known.state != self.state:
            own = self.own
            names = tuple([name for name in self.members if name not in own]) if own else tuple(self.members)
            known = self._together = CohortSnapshot(self, names)
        return known

    def marker_of(self, name: Hashable) -> Cursor:
        return self.own.get(name, self.marker)

    def join(self, one: FrontendState) -> None:
        members, own, marker = self.members, self.own, one.marker
        if len(members) == len(own):
            # Nobody shares.
            self.marker = marker
        elif marker != self.marker:
            own[one.id] = marker
        members[one.id] = one
        self.state = one.joined = self.state + 1
        one.live = True

    def leave(self, one: FrontendState) -> None:
        own = self.own
        one.marker = own.pop(one.id, self.marker) if own else self.marker
        del self.members[one.id]
        self.state += 1
        one.live = False

    def move(self, name: Hashable, to: Cursor) -> None:
        """One member acknowledges alone."""
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

    def move_several(self, names: Collection[Hashable], to: Cursor) -> dict[Cursor, int]:
        """Some members acknowledge: how many came from which marker. Who is further already stays where it is.

        Where most of those who shared the marker move, it moves with them and the others keep theirs alone.
        """
        moved: dict[Cursor, int] = {}
        own, marker = self.own, self.marker
        sharers: list[Hashable] = []
        for name in names:
            mine = own.get(name)
            if mine is None:
                if marker < to:
                    sharers.append(name)
            elif mine < to:
                moved[mine] = moved.get(mine, 0) + 1
                own[name] = to
        if sharers:
            moved[marker] = moved.get(marker, 0) + len(sharers)
            if 2 * len(sharers) >= self.sharing:
                going = set(sharers)
                left = [name for name in self.members if name not in own and name not in going]
                own.update(dict.fromkeys(left, marker))
                self.marker = to
            else:
                own.update(dict.fromkeys(sharers, to))
        self._merge()
        self.state += 1
        return moved

    def move_together(self, to: Cursor) -> None:
        """All who share the marker acknowledge; who has come there alone shares it again."""
        self.marker = to
        self._merge()

    def move_all(self, to: Cursor) -> dict[Cursor, int]:
        """All members acknowledge: how many came from which marker."""
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
        """Who has come to the shared marker alone shares it again."""
        own = self.own
        if own and self.marker in own.values():
            self.own = {name: marker for name, marker in self.own.items() if marker != self.marker}
            self.state += 1
