"""Serves the results that subscribers lack: from the cache, from the cluster, or from both."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence

from tocsin.broker.core.actions import Action, Deliver, DeliveryReason, Fetch, NotifyAvailable
from tocsin.broker.core.cohorts import CohortSnapshot, FrontendState
from tocsin.broker.core.events import FetchSucceeded, Mode
from tocsin.broker.core.fetches import (
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
from tocsin.rules.model.cursors import Cursor


class Delivery:
    """Answers pulls and catch-ups, and tracks their fetches. Methods append what has to be done to `actions`."""

    def __init__(self, settings: CoreSettings, caches: ResultCaches) -> None:
        self._settings = settings
        self._caches = caches
        self._under_way: dict[int, PendingFetch] = {}
        self._begun = 0

    # --- requests of subscribers

    def ask(
        self,
        backend: InterestState,
        askers: Sequence[FrontendState] | CohortSnapshot,
        after: Cursor,
        why: DeliveryReason,
        *,
        now_s: float,
        actions: list[Action],
        limit: int | None = None,
    ) -> None:
        """Algorithm 1's GET of `(after, head]`: one page of it, for several subscriptions that lack the same range."""
        cache = backend.held
        runs = self._caches.get(cache, after, cache.head, now_s, len(askers))
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
            audience = askers if type(askers) is CohortSnapshot else tuple([asker.id for asker in askers])
            results = runs[0].results
            self._caches.served(len(audience), len(results), size_bytes(results))
            actions.append(Deliver(backend.interest, after, to, results, audience, why, None, to < cache.head))
            return
        if type(askers) is CohortSnapshot:
            waiting = PendingAnswer(after, to, why, [], [askers])
        else:
            waiting = PendingAnswer(after, to, why, [(asker, asker.turn) for asker in askers], [])
        if backend.flights:
            if (same := backend.waiting.get(waiting.asked)) is not None:
                same.askers += waiting.askers
                same.groups += waiting.groups
                return
            waiting.parts = split_runs(
                runs, backend.flights, lambda begin, end: self._miss(backend, begin, end, limit_results, actions)
            )
        else:
            waiting.parts = [
                run if type(run) is CachedRun else self._miss(backend, run.after, run.to, limit_results, actions)
                for run in runs
            ]
        for part in waiting.parts:
            if isinstance(part, CachedRun):
                continue
            fetch = part.flight if isinstance(part, SharedFetch) else part
            if not fetch.waiting or fetch.waiting[-1] is not waiting:
                fetch.waiting.append(waiting)
                waiting.lacking += 1
        if waiting.lacking:
            backend.waiting[waiting.asked] = waiting
        else:
            self._answer(backend, waiting, now_s, actions)

    def resume(self, backend: InterestState, one: FrontendState, now_s: float, actions: list[Action]) -> None:
        """Sends an online subscription with room what it lacks, or adds it to its cohort if it lacks nothing."""
        if not one.online or one.behind or one.live or one.waits or not one.attached:
            return
        head = backend.held.head
        if one.mode is Mode.NOTIFY:
            lacks = one.marker < head
            one.cohort.join(one)
            if lacks:
                actions.append(NotifyAvailable(backend.interest, head, (one.id,)))
        elif one.sent >= head:
            one.cohort.join(one)
        else:
            one.waits = True
            self.ask(backend, [one], one.sent, DeliveryReason.CAUGHT_UP, now_s=now_s, actions=actions)

    # --- fetches

    def begin(
        self,
        backend: InterestState,
        after: Cursor,
        to: Cursor,
        actions: list[Action],
        *,
        news: bool = False,
        most: int | None = None,
    ) -> PendingFetch:
        """Begins a fetch of `(after, to]`, at most `most` results. `news`: it brings newly announced results."""
        self._begun = number = self._begun + 1
        limits = self._settings
        limit = limits.page_results if most is None else most
        fetch = Fetch(number, backend.interest, after, to, limit, limits.page_bytes)
        self._under_way[number] = pending = PendingFetch(fetch, backend, news)
        actions.append(fetch)
        return pending

    def again(self, number: int, actions: list[Action]) -> None:
        """Retries the fetch if it is still needed."""
        pending = self._under_way.get(number)
        if pending is not None:
            actions.append(pending.fetch)

    def under_way(self, number: int) -> PendingFetch | None:
        return self._under_way.get(number)

    def land(self, flight: PendingFetch, answer: FetchSucceeded, now_s: float, actions: list[Action]) -> None:
        """Takes the answer of a fetch. The caller handles new results; others go to the answers that wait for them."""
        del self._under_way[answer.fetch]
        backend = flight.backend
        flight.answer = answer
        flight.answer_bytes = size_bytes(answer.results) if answer.size_bytes is None else answer.size_bytes
        self._caches.fetched(backend.held, len(answer.results), flight.answer_bytes, answer.took_s)
        if flight.news:
            backend.news = None
            return
        backend.flights.remove(flight)
        if self._caches.settings.fetched_enters:
            # Do not fill the gap in the cache: the next subscriber that asks for it must learn of it, too.
            begins = max(flight.after, answer.gap or flight.after)
            self._caches.fill(backend.held, MissingRun(begins, min(flight.to, answer.to)), answer.results, now_s)
        # Break the reference cycle of fetches and answers, so that they are freed without the garbage collector.
        answers, flight.waiting = flight.waiting, []
        for waiting in answers:
            waiting.lacking -= 1
            if waiting.lacking == 0:
                del backend.waiting[waiting.asked]
                self._answer(backend, waiting, now_s, actions)

    def forget(self, backend: InterestState) -> None:
        """The interest has ended: answers to its fetches will be ignored."""
        for pending in self._flights_of(backend):
            del self._under_way[pending.fetch.fetch]

    # --- helpers

    def _miss(
        self, backend: InterestState, after: Cursor, to: Cursor, most: int, actions: list[Action]
    ) -> PendingFetch:
        """Begins a fetch of results that the cache lacks."""
        pending = self.begin(backend, after, to, actions, most=most)
        backend.flights.append(pending)
        return pending

    def _answer(self, backend: InterestState, waiting: PendingAnswer, now_s: float, actions: list[Action]) -> None:
        """Delivers a complete answer to the askers that still wait for it."""
        askers = [frontend for frontend, turn in waiting.askers if frontend.turn == turn]
        catches_up = waiting.why is DeliveryReason.CAUGHT_UP
        if catches_up:
            askers = self._still_there(backend, askers, waiting.after, now_s, actions)
        audience = _audience(askers, waiting.groups) if waiting.groups else tuple([frontend.id for frontend in askers])
        if not audience:
            return
        (to, results, gap), counts = join_parts(waiting.after, waiting.parts)
        head = backend.held.head
        if to == waiting.after < head:
            # The fetches begun for other answers brought nothing of this range, so begin a fetch of its own.
            everybody = [backend.frontends[name] for name in audience]
            self.ask(backend, everybody, waiting.after, waiting.why, now_s=now_s, actions=actions)
            return
        self._caches.served(len(audience), *counts)
        more = to < head
        actions.append(Deliver(backend.interest, waiting.after, to, results, audience, waiting.why, gap, more))
        if catches_up:
            for frontend in askers:
                frontend.waits = False
                frontend.sent = max(frontend.sent, to)
                if not more:
                    frontend.cohort.join(frontend)

    def _still_there(
        self,
        backend: InterestState,
        askers: Sequence[FrontendState],
        after: Cursor,
        now_s: float,
        actions: list[Action],
    ) -> list[FrontendState]:
        """The askers that still wait at `after`. An asker that acknowledged meanwhile resumes from its new position."""
        for frontend in askers:
            frontend.waits = frontend.sent == after
            if not frontend.waits:
                self.resume(backend, frontend, now_s, actions)
        return [frontend for frontend in askers if frontend.waits and frontend.sent == after]

    def _flights_of(self, backend: InterestState) -> Iterator[PendingFetch]:
        yield from backend.flights
        if backend.news is not None:
            yield backend.news


def _audience(askers: Sequence[FrontendState], groups: Sequence[CohortSnapshot]) -> Collection[Hashable]:
    """The subscriptions of askers and snapshots; a current snapshot alone is passed on as an object."""
    if not askers and len(groups) == 1 and groups[0].current:
        return groups[0]
    subscriptions = [frontend.id for frontend in askers]
    for group in groups:
        subscriptions += group.still_there()
    return tuple(subscriptions)
