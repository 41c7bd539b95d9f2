"""How subscribers get what they lack: from the cache, from the cluster, or from both."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence

from tocsin.broker.core.actions import Action, Deliver, DeliveryReason, Fetch, NotifyAvailable
from tocsin.broker.core.cohorts import CohortSnapshot, FrontendState
from tocsin.broker.core.events import FetchSucceeded, Mode
from tocsin.broker.core.fetches import (
    PendingAnswer,
    PendingFetch,
    SharedFetch,
    answer_of,
    missing_bytes,
    page,
    parts_of,
)
from tocsin.broker.core.interest_state import InterestState
from tocsin.broker.core.settings import CoreSettings
from tocsin.rules.caching.caches import ResultCaches
from tocsin.rules.caching.entries import CachedRun, MissingRun, size_bytes
from tocsin.rules.model.cursors import Cursor


class Delivery:
    """Appends what has to be done to `actions`."""

    def __init__(self, settings: CoreSettings, caches: ResultCaches) -> None:
        self._settings = settings
        self._caches = caches
        self._under_way: dict[int, PendingFetch] = {}
        self._begun = 0

    # --- asking

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
        """Algorithm 1's GET of `(after, head]`, a page of it, for several who lack the same."""
        cache = backend.held
        runs = self._caches.get(cache, after, cache.head, now_s, len(askers))
        limits = self._settings
        most = limits.page_results if limit is None else min(limit, limits.page_results)
        if (
            cache.residents >= most
            or cache.resident_bytes >= limits.page_bytes
            or (len(runs) > 2 and missing_bytes(runs) >= limits.page_bytes)
        ):
            runs = page(runs, most, limits.page_bytes)
        to = runs[-1].to if runs else after
        if len(runs) == 1 and type(runs[0]) is CachedRun and why is DeliveryReason.PULLED:
            # Everything is here, as for nearly all who are told of news and pull them.
            audience = askers if type(askers) is CohortSnapshot else tuple([one.id for one in askers])
            results = runs[0].results
            self._caches.served(len(audience), len(results), size_bytes(results))
            actions.append(Deliver(backend.interest, after, to, results, audience, why, None, to < cache.head))
            return
        if type(askers) is CohortSnapshot:
            waiting = PendingAnswer(after, to, why, [], [askers])
        else:
            waiting = PendingAnswer(after, to, why, [(one, one.turn) for one in askers], [])
        if backend.flights:
            if (same := backend.waiting.get(waiting.asked)) is not None:
                same.askers += waiting.askers
                same.groups += waiting.groups
                return
            waiting.parts = parts_of(
                runs, backend.flights, lambda begin, end: self._miss(backend, begin, end, most, actions)
            )
        else:
            waiting.parts = [
                run if type(run) is CachedRun else self._miss(backend, run.after, run.to, most, actions) for run in runs
            ]
        for part in waiting.parts:
            if isinstance(part, CachedRun):
                continue
            flight = part.flight if isinstance(part, SharedFetch) else part
            if not flight.waiting or flight.waiting[-1] is not waiting:
                flight.waiting.append(waiting)
                waiting.lacking += 1
        if waiting.lacking:
            backend.waiting[waiting.asked] = waiting
        else:
            self._answer(backend, waiting, now_s, actions)

    def resume(self, backend: InterestState, one: FrontendState, now_s: float, actions: list[Action]) -> None:
        """Somebody is online and has room: it gets what it lacks, and joins its cohort when it lacks nothing."""
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
        self._begun = number = self._begun + 1
        limits = self._settings
        limit = limits.page_results if most is None else most
        fetch = Fetch(number, backend.interest, after, to, limit, limits.page_bytes)
        self._under_way[number] = flight = PendingFetch(fetch, backend, news)
        actions.append(fetch)
        return flight

    def again(self, number: int, actions: list[Action]) -> None:
        """Asks once more, if it still matters."""
        flight = self._under_way.get(number)
        if flight is not None:
            actions.append(flight.fetch)

    def under_way(self, number: int) -> PendingFetch | None:
        return self._under_way.get(number)

    def land(self, flight: PendingFetch, answer: FetchSucceeded, now_s: float, actions: list[Action]) -> None:
        """A flight is back; news are the caller's, the others go to who waits for them."""
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
            # What is gone is not filled in: whoever asks for it next is to be told as well.
            begins = max(flight.after, answer.gap or flight.after)
            self._caches.fill(backend.held, MissingRun(begins, min(flight.to, answer.to)), answer.results, now_s)
        # Flights and those who wait for them know each other: let go of, they are gone without a collector.
        waits, flight.waiting = flight.waiting, []
        for waiting in waits:
            waiting.lacking -= 1
            if waiting.lacking == 0:
                del backend.waiting[waiting.asked]
                self._answer(backend, waiting, now_s, actions)

    def forget(self, backend: InterestState) -> None:
        """The interest is gone; answers for it will be passed over."""
        for flight in self._flights_of(backend):
            del self._under_way[flight.fetch.fetch]

    # --- inside

    def _miss(
        self, backend: InterestState, after: Cursor, to: Cursor, most: int, actions: list[Action]
    ) -> PendingFetch:
        flight = self.begin(backend, after, to, actions, most=most)
        backend.flights.append(flight)
        return flight

    def _answer(self, backend: InterestState, waiting: PendingAnswer, now_s: float, actions: list[Action]) -> None:
        askers = [one for one, turn in waiting.askers if one.turn == turn]
        catches_up = waiting.why is DeliveryReason.CAUGHT_UP
        if catches_up:
            askers = self._still_there(backend, askers, waiting.after, now_s, actions)
        audience = _audience(askers, waiting.groups) if waiting.groups else tuple([one.id for one in askers])
        if not audience:
            return
        (to, results, gap), counts = answer_of(waiting.after, waiting.parts)
        head = backend.held.head
        if to == waiting.after < head:
            # The flights that others had begun brought nothing of this: now from its own beginning.
            everybody = [backend.frontends[name] for name in audience]
            self.ask(backend, everybody, waiting.after, waiting.why, now_s=now_s, actions=actions)
            return
        self._caches.served(len(audience), *counts)
        more = to < head
        actions.append(Deliver(backend.interest, waiting.after, to, results, audience, waiting.why, gap, more))
        if catches_up:
            for one in askers:
                one.waits = False
                one.sent = max(one.sent, to)
                if not more:
                    one.cohort.join(one)

    def _still_there(
        self,
        backend: InterestState,
        askers: Sequence[FrontendState],
        after: Cursor,
        now_s: float,
        actions: list[Action],
    ) -> list[FrontendState]:
        """Who acknowledged something while it waited lacks less than it asked for, and begins anew."""
        for one in askers:
            one.waits = one.sent == after
            if not one.waits:
                self.resume(backend, one, now_s, actions)
        return [one for one in askers if one.waits and one.sent == after]

    def _flights_of(self, backend: InterestState) -> Iterator[PendingFetch]:
        yield from backend.flights
        if backend.news is not None:
            yield backend.news


def _audience(askers: Sequence[FrontendState], groups: Sequence[CohortSnapshot]) -> Collection[Hashable]:
    if not askers and len(groups) == 1 and groups[0].current:
        return groups[0]
    names = [one.id for one in askers]
    for group in groups:
        names += group.still_there()
    return tuple(names)
