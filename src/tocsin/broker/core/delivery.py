"""How subscribers get what they lack: from the cache, from the cluster, or from both."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence

from tocsin.broker.core.actions import Action, Deliver, Fetch, Notify, Why
from tocsin.broker.core.backend import Backend
from tocsin.broker.core.cohorts import Frontend, Group
from tocsin.broker.core.events import Fetched, Mode
from tocsin.broker.core.flights import Flight, Waiting, answer_of, page, parts_of
from tocsin.broker.core.settings import CoreSettings
from tocsin.rules.caching.caches import ResultCaches
from tocsin.rules.caching.entries import Cached, Missing
from tocsin.rules.model.cursors import Cursor


class Delivery:
    """Appends what has to be done to `actions`."""

    def __init__(self, settings: CoreSettings, caches: ResultCaches) -> None:
        self._settings = settings
        self._caches = caches
        self._under_way: dict[int, tuple[Backend, Flight]] = {}
        self._begun = 0

    # --- asking

    def ask(
        self,
        backend: Backend,
        askers: Sequence[Frontend] | Group,
        after: Cursor,
        why: Why,
        *,
        now_s: float,
        actions: list[Action],
    ) -> None:
        """Algorithm 1's GET of `(after, head]`, a page of it, for several who lack the same."""
        cache = backend.held
        runs = self._caches.get(cache, after, cache.head, now_s, len(askers))
        runs = page(runs, self._settings.page_results, self._settings.page_bytes)
        to = runs[-1].to if runs else after
        if len(runs) == 1 and type(runs[0]) is Cached and why is Why.PULLED:
            # Everything is here, as for nearly all who are told of news and pull them.
            audience = askers if isinstance(askers, Group) else tuple([one.id for one in askers])
            results = runs[0].results
            self._caches.served(results, (), len(audience))
            actions.append(Deliver(backend.interest, after, to, results, audience, why, None, to < cache.head))
            return
        turns: list[tuple[Frontend, int]] = []
        groups: list[Group] = []
        if isinstance(askers, Group):
            groups = [askers]
        else:
            turns = [(one, one.turn) for one in askers]
        same = backend.waiting.get((after, to, why)) if backend.waiting else None
        if same is not None:
            same.askers += turns
            same.groups += groups
            return

        def begin(begins: Cursor, ends: Cursor) -> Flight:
            flight = self.begin(backend, begins, ends, actions)
            backend.flights.append(flight)
            return flight

        parts = parts_of(runs, backend.flights, begin)
        flights = dict.fromkeys([part.flight for part in parts if part.flight is not None])
        waiting = Waiting(after, to, why, parts, len(flights), turns, groups)
        if flights:
            backend.waiting[after, to, why] = waiting
            for flight in flights:
                flight.waiting.append(waiting)
        else:
            self._answer(backend, waiting, now_s, actions)

    def resume(self, backend: Backend, one: Frontend, now_s: float, actions: list[Action]) -> None:
        """Somebody is online and has room: it gets what it lacks, and joins its cohort when it lacks nothing."""
        if not one.online or one.behind or one.live or one.waits or not one.attached:
            return
        head = backend.held.head
        if one.mode is Mode.NOTIFY:
            backend.join(one)
            if backend.marker_of(one) < head:
                actions.append(Notify(backend.interest, head, (one.id,)))
        elif one.sent >= head:
            backend.join(one)
        else:
            one.waits = True
            self.ask(backend, [one], one.sent, Why.CAUGHT_UP, now_s=now_s, actions=actions)

    # --- fetches

    def begin(
        self, backend: Backend, after: Cursor, to: Cursor, actions: list[Action], *, news: bool = False
    ) -> Flight:
        self._begun += 1
        flight = Flight(self._begun, after, to, news)
        self._under_way[flight.number] = (backend, flight)
        actions.append(self._fetch(backend, flight))
        return flight

    def again(self, number: int, actions: list[Action]) -> None:
        """Asks once more, if it still matters."""
        found = self._under_way.get(number)
        if found is not None:
            actions.append(self._fetch(*found))

    def under_way(self, number: int) -> tuple[Backend, Flight] | None:
        return self._under_way.get(number)

    def land(self, backend: Backend, flight: Flight, answer: Fetched, now_s: float, actions: list[Action]) -> None:
        """A flight is back; news are the caller's, the others go to who waits for them."""
        del self._under_way[flight.number]
        flight.answer = answer
        self._caches.fetched(backend.held, answer.results, answer.took_s)
        if flight.news:
            backend.news = None
            return
        backend.flights.remove(flight)
        # What is gone is not filled in: whoever asks for it next is to be told as well.
        begins = max(flight.after, answer.gap or flight.after)
        self._caches.fill(backend.held, Missing(begins, min(flight.to, answer.to)), answer.results, now_s)
        for waiting in flight.waiting:
            waiting.lacking -= 1
            if waiting.lacking == 0:
                del backend.waiting[waiting.after, waiting.to, waiting.why]
                self._answer(backend, waiting, now_s, actions)

    def forget(self, backend: Backend) -> None:
        """The interest is gone; answers for it will be passed over."""
        for flight in self._flights_of(backend):
            del self._under_way[flight.number]

    # --- inside

    def _answer(self, backend: Backend, waiting: Waiting, now_s: float, actions: list[Action]) -> None:
        askers = [one for one, turn in waiting.askers if one.turn == turn]
        if waiting.why is Why.CAUGHT_UP:
            askers = self._still_there(backend, askers, waiting.after, now_s, actions)
        audience = _audience(askers, waiting.groups)
        if not audience:
            return
        answer = answer_of(waiting.after, waiting.parts)
        head = backend.held.head
        if answer.to == waiting.after < head:
            # The flights that others had begun brought nothing of this: now from its own beginning.
            everybody = [backend.frontends[name] for name in audience]
            self.ask(backend, everybody, waiting.after, waiting.why, now_s=now_s, actions=actions)
            return
        self._caches.served(answer.cached, answer.missed, len(audience))
        more = answer.to < head
        actions.append(
            Deliver(backend.interest, waiting.after, answer.to, answer.results, audience, waiting.why, answer.gap, more)
        )
        if waiting.why is Why.CAUGHT_UP:
            for one in askers:
                one.waits = False
                one.sent = max(one.sent, answer.to)
                if not more:
                    backend.join(one)

    def _still_there(
        self, backend: Backend, askers: Sequence[Frontend], after: Cursor, now_s: float, actions: list[Action]
    ) -> list[Frontend]:
        """Who acknowledged something while it waited lacks less than it asked for, and begins anew."""
        for one in askers:
            one.waits = one.sent == after
            if not one.waits:
                self.resume(backend, one, now_s, actions)
        return [one for one in askers if one.waits and one.sent == after]

    def _fetch(self, backend: Backend, flight: Flight) -> Fetch:
        return Fetch(flight.number, backend.interest, flight.after, flight.to, self._settings.page_results)

    def _flights_of(self, backend: Backend) -> Iterator[Flight]:
        yield from backend.flights
        if backend.news is not None:
            yield backend.news


def _audience(askers: Sequence[Frontend], groups: Sequence[Group]) -> Collection[Hashable]:
    if not askers and len(groups) == 1 and groups[0].current:
        return groups[0]
    names = [one.id for one in askers]
    for group in groups:
        names += group.still_there()
    return tuple(names)
