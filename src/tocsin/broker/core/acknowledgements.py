"""Moves the markers of subscriptions that acknowledge results, and reports to the cluster how far all have read.

A marker moves forward only, and never beyond the head. The cache drops what every attached subscriber has acknowledged.
"""

from __future__ import annotations

from collections.abc import Collection

from tocsin.broker.core import events as ev
from tocsin.broker.core.actions import Action, ReportConsumed
from tocsin.broker.core.cohorts import Cohort, CohortSnapshot, FrontendState
from tocsin.broker.core.interest_state import CoreState, InterestState
from tocsin.rules.model.cursors import Cursor, InterestId, SubscriptionId


class Acknowledgements:
    """Handles the events of acknowledgements."""

    def __init__(self, state: CoreState, *, report_every_s: float, now_s: float) -> None:
        self._state = state
        self._caches = state.caches
        self._report_every_s = report_every_s
        self.report_due_s = now_s + report_every_s

    def acknowledge(self, event: ev.ResultsAcknowledged, _now_s: float, _actions: list[Action]) -> None:
        state = self._state.interests.get(event.interest)
        if state is not None and state.cache is not None:
            self._acknowledge(state, event.cursor, event.subscriptions)
            self._state.unreported[state.interest] = state

    def acknowledge_many(self, event: ev.ResultsAcknowledgedByMany, _now_s: float, _actions: list[Action]) -> None:
        for subscription, cursor in event.acks:
            frontend = self._state.frontends.get(subscription)
            if frontend is not None and frontend.attached:
                self._acknowledge_one(frontend, cursor)
                self._state.unreported[frontend.interest] = frontend.interest_state

    def report(self, now_s: float, actions: list[Action]) -> None:
        """Reports the lowest marker of every interest in which it has moved."""
        lowest: dict[InterestId, Cursor] = {}
        for state in self._state.unreported.values():
            if state.cache is not None and (marker := state.cache.lowest_marker()) != state.reported:
                lowest[state.interest] = state.reported = marker
        self._state.unreported.clear()
        self.report_due_s = now_s + self._report_every_s
        if lowest:
            actions.append(ReportConsumed(lowest))

    def _acknowledge(self, state: InterestState, to: Cursor, names: Collection[SubscriptionId]) -> None:
        """Moves the markers of these subscriptions. Those that are unknown or have ended are ignored."""
        cache = state.open_cache
        to = min(to, cache.head)
        moved: dict[Cursor, int]
        if type(names) is CohortSnapshot and state.together(names):
            before = names.cohort.marker
            if before < to and names.names:
                names.cohort.move_together(to)
                self._caches.advance(cache, before, to, len(names.names))
            return
        if names is state.inline or names is state.notify:
            assert isinstance(names, Cohort)
            moved = names.move_all(to)
        else:
            moved = _move(state, to, names)
        for before, count in moved.items():
            self._caches.advance(cache, before, to, count)

    def _acknowledge_one(self, frontend: FrontendState, to: Cursor) -> None:
        """Does the same for one attached subscription."""
        cache, before = frontend.interest_state.open_cache, frontend.acknowledged
        to = min(to, cache.head)
        if before >= to:
            return
        if frontend.live:
            frontend.cohort.move(frontend.id, to)
        else:
            frontend.marker = to
            frontend.sent = max(frontend.sent, to)
        self._caches.advance(cache, before, to)


def _move(state: InterestState, to: Cursor, names: Collection[SubscriptionId]) -> dict[Cursor, int]:
    """Moves the attached subscriptions that are before `to`; returns how many came from each marker."""
    moved: dict[Cursor, int] = {}
    live: dict[Cohort, list[SubscriptionId]] = {}
    for name in dict.fromkeys(names):
        frontend = state.frontends.get(name)
        if frontend is None or not frontend.attached:
            continue
        if frontend.live:
            live.setdefault(frontend.cohort, []).append(name)
        elif frontend.marker < to:
            moved[frontend.marker] = moved.get(frontend.marker, 0) + 1
            frontend.marker = to
            frontend.sent = max(frontend.sent, to)
    for cohort, members in live.items():
        if len(members) == 1:
            (name,) = members
            if (before := cohort.marker_of(name)) < to:
                cohort.move(name, to)
                moved[before] = moved.get(before, 0) + 1
            continue
        for before, count in cohort.move_several(members, to).items():
            moved[before] = moved.get(before, 0) + count
    return moved
