"""Sends subscribers the results that they missed: from the cache, from the cluster, or from both.

A subscriber that comes back, or has room again, catches up here (`catch_up`); one that was notified pulls (`get`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tocsin.broker.core.actions import Action, Deliver, DeliveryReason, NotifyAvailable
from tocsin.broker.core.cohorts import CohortSnapshot, FrontendState
from tocsin.broker.core.events import FetchSucceeded, Mode
from tocsin.broker.core.fetches import (
    Fetches,
    PendingAnswer,
    PendingFetch,
    SharedFetch,
    cut_to_page,
    join_parts,
    missing_bytes,
    split_runs,
)
from tocsin.broker.core.interest_state import InterestState
from tocsin.broker.core.settings import CoreSettings
from tocsin.rules.caching.caches import ResultCaches
from tocsin.rules.caching.entries import CachedRun, MissingRun, size_bytes
from tocsin.rules.model.cursors import Cursor, SubscriptionId


class CatchUp:
    """Answers pulls and catch-ups. Methods append what has to be done to `actions`."""

    def __init__(self, settings: CoreSettings, caches: ResultCaches, fetches: Fetches) -> None:
        self._settings = settings
        self._caches = caches
        self._fetches = fetches

    def get(
        self,
        state: InterestState,
        receivers: Sequence[FrontendState] | CohortSnapshot,
        after: Cursor,
        why: DeliveryReason,
        *,
        now_s: float,
        actions: list[Action],
        limit: int | None = None,
    ) -> None:
        """Algorithm 1's GET of `(after, head]`: one page of it, for several subscriptions that lack the same range."""
        cache = state.open_cache
        runs = self._caches.get(cache, after, cache.head, now_s, len(receivers))
        limits = self._settings
        limit_results = limits.page_results if limit is None else min(limit, limits.page_results)
        if (
            cache.residents >= limit_results
            or cache.resident_bytes >= limits.page_bytes
            or (len(runs) > 2 and missing_bytes(runs) >= limits.page_bytes)
        ):
            runs = cut_to_page(runs, limit_results, limits.page_bytes)
        to = runs[-1].to if runs else after
        if len(runs) == 1 and type(runs[0]) is CachedRun and why is DeliveryReason.PULLED:
            # The fast path: everything is cached, as for nearly all subscribers that pull after a notification.
            audience = (
                receivers if type(receivers) is CohortSnapshot else tuple([receiver.id for receiver in receivers])
            )
            results = runs[0].results
            self._caches.count_reads(len(audience), len(results), size_bytes(results))
            actions.append(Deliver(state.interest, after, to, results, audience, why, None, to < cache.head))
            return
        if type(receivers) is CohortSnapshot:
            waiting = PendingAnswer(after, to, why, [], [receivers])
        else:
            waiting = PendingAnswer(after, to, why, [(receiver, receiver.turn) for receiver in receivers], [])
        if state.fetches:
            if (same := state.waiting.get(waiting.asked)) is not None:
                same.receivers += waiting.receivers
                same.groups += waiting.groups
                return
            waiting.parts = split_runs(
                runs, state.fetches, lambda begin, end: self._miss(state, begin, end, limit_results, actions)
            )
        else:
            waiting.parts = [
                run if type(run) is CachedRun else self._miss(state, run.after, run.to, limit_results, actions)
                for run in runs
            ]
        for part in waiting.parts:
            if isinstance(part, CachedRun):
                continue
            fetch = part.fetch if isinstance(part, SharedFetch) else part
            if not fetch.waiting or fetch.waiting[-1] is not waiting:
                fetch.waiting.append(waiting)
                waiting.lacking += 1
        if waiting.lacking:
            state.waiting[waiting.asked] = waiting
        else:
            self._answer(state, waiting, now_s, actions)

    def catch_up(self, state: InterestState, frontend: FrontendState, now_s: float, actions: list[Action]) -> None:
        """Sends an online subscription with room what it lacks, or adds it to its cohort if it lacks nothing."""
        if not frontend.online or frontend.behind or frontend.live or frontend.waits or not frontend.attached:
            return
        head = state.open_cache.head
        if frontend.mode is Mode.NOTIFY:
            lacks = frontend.marker < head
            frontend.cohort.join(frontend)
            if lacks:
                actions.append(NotifyAvailable(state.interest, head, (frontend.id,)))
        elif frontend.sent >= head:
            frontend.cohort.join(frontend)
        else:
            frontend.waits = True
            self.get(state, [frontend], frontend.sent, DeliveryReason.CAUGHT_UP, now_s=now_s, actions=actions)

    def take_answer(self, fetch: PendingFetch, answer: FetchSucceeded, now_s: float, actions: list[Action]) -> None:
        """Takes the answer to a fetch of missed results, and delivers what waited for it."""
        state = fetch.interest_state
        state.fetches.remove(fetch)
        if self._caches.settings.fetched_enters:
            # Do not fill the gap in the cache: the next subscriber that asks for it must learn of it, too.
            begins = max(fetch.after, answer.gap or fetch.after)
            self._caches.fill(state.open_cache, MissingRun(begins, min(fetch.to, answer.to)), answer.results, now_s)
        # Break the reference cycle of fetches and answers, so that they are freed without the garbage collector.
        answers, fetch.waiting = fetch.waiting, []
        for waiting in answers:
            waiting.lacking -= 1
            if waiting.lacking == 0:
                del state.waiting[waiting.asked]
                self._answer(state, waiting, now_s, actions)

    def _miss(self, state: InterestState, after: Cursor, to: Cursor, most: int, actions: list[Action]) -> PendingFetch:
        """Begins a fetch of results that the cache lacks."""
        pending = self._fetches.begin(state, after, to, actions, most=most)
        state.fetches.append(pending)
        return pending

    def _answer(self, state: InterestState, waiting: PendingAnswer, now_s: float, actions: list[Action]) -> None:
        """Delivers a complete answer to the receivers that still wait for it."""
        receivers = [frontend for frontend, turn in waiting.receivers if frontend.turn == turn]
        catches_up = waiting.why is DeliveryReason.CAUGHT_UP
        if catches_up:
            receivers = self._still_there(state, receivers, waiting.after, now_s, actions)
        audience = (
            _audience(receivers, waiting.groups) if waiting.groups else tuple([frontend.id for frontend in receivers])
        )
        if not audience:
            return
        (to, results, gap), counts = join_parts(waiting.after, waiting.parts)
        head = state.open_cache.head
        if to == waiting.after < head:
            # The fetches begun for other answers brought nothing of this range, so begin a fetch of its own.
            everybody = [state.frontends[name] for name in audience]
            self.get(state, everybody, waiting.after, waiting.why, now_s=now_s, actions=actions)
            return
        self._caches.count_reads(len(audience), *counts)
        more = to < head
        actions.append(Deliver(state.interest, waiting.after, to, results, audience, waiting.why, gap, more))
        if catches_up:
            for frontend in receivers:
                frontend.waits = False
                frontend.sent = max(frontend.sent, to)
                if not more:
                    frontend.cohort.join(frontend)

    def _still_there(
        self,
        state: InterestState,
        receivers: Sequence[FrontendState],
        after: Cursor,
        now_s: float,
        actions: list[Action],
    ) -> list[FrontendState]:
        """The receivers that still wait at `after`. One that acknowledged meanwhile resumes from its new position."""
        for frontend in receivers:
            frontend.waits = frontend.sent == after
            if not frontend.waits:
                self.catch_up(state, frontend, now_s, actions)
        return [frontend for frontend in receivers if frontend.waits and frontend.sent == after]


def _audience(receivers: Sequence[FrontendState], groups: Sequence[CohortSnapshot]) -> Collection[SubscriptionId]:
    """The subscriptions of receivers and snapshots; a current snapshot alone is passed on as an object."""
    if not receivers and len(groups) == 1 and groups[0].current:
        return groups[0]
    subscriptions = [frontend.id for frontend in receivers]
    for group in groups:
        subscriptions += group.still_there()
    return tuple(subscriptions)
