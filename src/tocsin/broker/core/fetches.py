"""Fetches under way, and who waits for them: many misses of the same range are one fetch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from tocsin.broker.core.actions import DeliveryReason, Fetch
from tocsin.broker.core.cohorts import CohortSnapshot, FrontendState
from tocsin.broker.core.events import FetchSucceeded
from tocsin.rules.caching.entries import BrokerResult, CachedRun, MissingRun, Run, size_bytes
from tocsin.rules.model.cursors import Cursor

if TYPE_CHECKING:
    from tocsin.broker.core.interest_state import InterestState


class PendingFetch:
    """`(after, to]` of an interest is being fetched: for those who wait, or because it is news."""

    __slots__ = ("after", "answer", "answer_bytes", "backend", "fetch", "news", "to", "waiting")

    def __init__(self, fetch: Fetch, backend: InterestState, news: bool) -> None:
        self.fetch = fetch
        self.after = fetch.after
        self.to = fetch.to
        self.backend = backend
        self.news = news
        self.answer: FetchSucceeded | None = None
        self.answer_bytes = 0
        self.waiting: list[PendingAnswer] = []


class SharedFetch:
    """What somebody else wants of a flight: `(after, to]`."""

    __slots__ = ("after", "flight", "to")

    def __init__(self, flight: PendingFetch, after: Cursor, to: Cursor) -> None:
        self.flight = flight
        self.after = after
        self.to = to


# A stretch of an answer: from the cache, a flight that was begun for it, or a share of one that was not.
Part = CachedRun | PendingFetch | SharedFetch


class PendingAnswer:
    """An answer that lacks something. `askers` with the turn in which each asked, and groups that asked as one."""

    __slots__ = ("after", "asked", "askers", "groups", "lacking", "parts", "to", "why")

    def __init__(
        self,
        after: Cursor,
        to: Cursor,
        why: DeliveryReason,
        askers: list[tuple[FrontendState, int]],
        groups: list[CohortSnapshot],
    ) -> None:
        self.after = after
        self.to = to
        self.why = why
        self.askers = askers
        self.groups = groups
        self.parts: list[Part] = []
        self.lacking = 0
        self.asked: Asked = (after, to, why is DeliveryReason.PULLED)


# The range, and whether somebody asked for it: those who catch up wait for themselves.
Asked = tuple[Cursor, Cursor, bool]
# Up to where the parts can be delivered, their results, and up to where some are gone.
Delivered = tuple[Cursor, tuple[BrokerResult, ...], Cursor | None]
# How many of these were here, with how many bytes, and how many were not, with how many.
Counts = tuple[int, int, int, int]


_AFTER: Final = attrgetter("after")


def page(runs: list[Run], limit_results: int, limit_bytes: int) -> list[Run]:
    """The runs, as far as they fit one delivery, which has at least one: so many cached results, and so many bytes,
    those of holes too."""
    results = [one for run in runs if type(run) is CachedRun for one in run.results]
    if len(results) < limit_results and size_bytes(results) + missing_bytes(runs) < limit_bytes:
        return runs
    whole: list[Run] = []
    count = taken_bytes = 0
    for run in runs:
        if isinstance(run, MissingRun):
            whole.append(run)
            taken_bytes += run.size_bytes
            if taken_bytes >= limit_bytes:
                return whole
            continue
        for index, one in enumerate(run.results):
            count += 1
            taken_bytes += one.size_bytes
            if count >= limit_results or taken_bytes >= limit_bytes:
                if index + 1 < len(run.results):
                    run = type(run)(run.after, one.cursor, run.results[: index + 1])
                whole.append(run)
                return whole
        whole.append(run)
    return whole


def missing_bytes(runs: Iterable[Run]) -> int:
    """What is missing as far as its size is known: that of holes."""
    return sum([run.size_bytes for run in runs if type(run) is MissingRun])


def parts_of(
    runs: Iterable[Run], under_way: Sequence[PendingFetch], begin: Callable[[Cursor, Cursor], PendingFetch]
) -> list[Part]:
    """Where each stretch comes from. Missing ones wait for what is under way; only the rest begins a flight."""
    flights = sorted(under_way, key=_AFTER)
    parts: list[Part] = []
    for run in runs:
        if type(run) is CachedRun:
            parts.append(run)
            continue
        place = run.after
        for flight in flights:
            if flight.to <= place or flight.after >= run.to:
                continue
            if flight.after > place:
                parts.append(begin(place, flight.after))
                place = flight.after
            end = min(run.to, flight.to)
            parts.append(SharedFetch(flight, place, end))
            place = end
        if place < run.to:
            parts.append(begin(place, run.to))
    return parts


def answer_of(after: Cursor, parts: Sequence[Part]) -> tuple[Delivered, Counts]:
    """The parts put together, up to the first that its flight did not answer to the end."""
    to, gap = after, None
    results: tuple[BrokerResult, ...] = ()
    hits = hit_bytes = misses = miss_bytes = 0
    for part in parts:
        if isinstance(part, CachedRun):
            found = part.results
            if found:
                hits += len(found)
                hit_bytes += size_bytes(found)
                results = results + found if results else found
            to = part.to
            continue
        flight = part.flight if isinstance(part, SharedFetch) else part
        answer = flight.answer
        assert answer is not None, "an answer is put together when all its flights are back"
        found, found_bytes = answer.results, flight.answer_bytes
        if found and not (part.after < found[0].cursor and found[-1].cursor <= part.to):
            found = tuple(one for one in found if part.after < one.cursor <= part.to)
            found_bytes = size_bytes(found)
        if found:
            misses += len(found)
            miss_bytes += found_bytes
            results = results + found if results else found
        if answer.gap is not None and answer.gap > part.after:
            gap = min(answer.gap, part.to)
        if answer.to < part.to:
            to = max(part.after, answer.to)
            break
        to = part.to
    return (to, results, gap), (hits, hit_bytes, misses, miss_bytes)
