"""Who subscribes to an interest, and who of them is served together.

Everybody who is online and has been sent everything is in a cohort, one per mode. A cohort shares one marker as long as
its members acknowledge together; who acknowledges alone gets a marker of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator

from tocsin.broker.core.events import Mode
from tocsin.rules.model.cursors import START, Cursor


class Frontend:
    """A subscriber's hold on an interest. `marker` counts only while it is in no cohort: ask the interest for it."""

    __slots__ = (
        "attached", "behind", "id", "interest", "live", "marker", "mode", "online", "sent", "since", "subscriber",
        "turn", "waits",
    )  # fmt: skip

    def __init__(
        self,
        name: Hashable,
        subscriber: Hashable,
        interest: Hashable,
        *,
        mode: Mode,
        since: Cursor | None,
        online: bool,
    ) -> None:
        self.id = name
        self.subscriber = subscriber
        self.interest = interest
        self.mode = mode
        self.since = since
        self.online = online
        # Its marker counts in the cache: the broker has come to where it begins.
        self.attached = False
        self.marker = START
        # How far it was sent results while it catches up; a member of a cohort was sent everything.
        self.sent = START
        self.live = False
        self.behind = False
        # It waits for a fetch. `turn` tells an answer that it no longer waits for from the present one.
        self.waits = False
        self.turn = 0


class Cohort(Collection[Hashable]):
    """Iterates over the subscriptions' names. Lives as long as its interest and changes with every event."""

    __slots__ = ("marker", "members", "own")

    def __init__(self, marker: Cursor) -> None:
        self.marker = marker
        self.members: dict[Hashable, Frontend] = {}
        self.own: dict[Hashable, Cursor] = {}

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)

    def __contains__(self, name: object) -> bool:
        return name in self.members

    @property
    def sharing(self) -> int:
        return len(self.members) - len(self.own)

    def marker_of(self, name: Hashable) -> Cursor:
        return self.own.get(name, self.marker)

    def join(self, one: Frontend) -> None:
        nobody_shares = self.sharing == 0
        self.members[one.id] = one
        if nobody_shares:
            self.marker = one.marker
        elif one.marker != self.marker:
            self.own[one.id] = one.marker
        one.live = True

    def leave(self, one: Frontend) -> None:
        one.marker = self.own.pop(one.id, self.marker)
        del self.members[one.id]
        one.live = False

    def move(self, name: Hashable, to: Cursor) -> None:
        """One member acknowledges alone."""
        if name not in self.own and self.sharing == 1:
            self.marker = to
        else:
            self.own[name] = to

    def move_all(self, to: Cursor) -> dict[Cursor, int]:
        """All members acknowledge: how many came from which marker."""
        moved: dict[Cursor, int] = {}
        if self.sharing and self.marker < to:
            moved[self.marker] = self.sharing
        for marker in self.own.values():
            if marker < to:
                moved[marker] = moved.get(marker, 0) + 1
        if self.marker <= to or not self.sharing:
            self.own = {name: marker for name, marker in self.own.items() if marker > to}
            self.marker = to
        else:
            self.own = {name: max(marker, to) for name, marker in self.own.items()}
        return moved
