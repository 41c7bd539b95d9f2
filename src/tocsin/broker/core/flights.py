"""Fetches under way, and who waits for them: many misses of the same range are one fetch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from tocsin.broker.core.actions import Why
from tocsin.broker.core.cohorts import Frontend, Group
from tocsin.broker.core.events import Fetched
from tocsin.rules.caching.entries import Cached, Missing, Result, Run, size_bytes
from tocsin.rules.model.cursors import Cursor

if TYPE_CHECKING:
    from tocsin.broker.core.backend import Backend


class Flight:
    """`(after, to]` of an interest is being fetched: for those who wait, or because it is news."""

    __slots__ = ("after", "answer", "answer_bytes", "backend", "limit", "news", "number", "to", "waiting")

    def __init__(
        self, number: int, backend: Backend, after: Cursor, to: Cursor, *, limit: int, news: bool = False
    ) -> None:
        self.number = number
        self.backend = backend
        self.after = after
        self.to = to
        self.limit = limit
        self.news = news
        self.answer: Fetched | None = None
        self.answer_bytes = 0
        self.waiting: list[Waiting] = []


# A stretch of an answer: from the cache, or of a flight.
Part = tuple[Run, Flight | None]


class Waiting:
    """An answer that lacks something. `askers` with the turn in which each asked, and groups that asked as one."""

    __slots__ = ("after", "asked", "askers", "groups", "lacking", "parts", "to", "why")

    def __init__(
        self, after: Cursor, to: Cursor, why: Why, askers: list[tuple[Frontend, int]], groups: list[Group]
    ) -> None:
        self.after = after
        self.to = to
        self.why = why
        self.askers = askers
        self.groups = groups
        self.parts: list[Part] = []
        self.lacking = 0
        self.asked: Asked = (after, to, why is Why.PULLED)


# The range, and whether somebody asked for it: those who catch up wait for themselves.
Asked = tuple[Cursor, Cursor, bool]


@dataclass(slots=True, eq=False)
class Answer:
    """What can be delivered of the parts, up to `to`, and how much of it was here and was not."""

    to: Cursor
    results: tuple[Result, ...] = ()
    hits: int = 0
    hit_bytes: int = 0
    misses: int = 0
    miss_bytes: int = 0
    gap: Cursor | None = None


_AFTER: Final = attrgetter("after")


def page(runs: list[Run], limit_results: int, limit_bytes: int) -> list[Run]:
    """The runs, as far as they fit one delivery, which has at least one: so many cached results, and so many bytes,
    those of holes too."""
    results = [one for run in runs if type(run) is Cached for one in run.results]
    if len(results) < limit_results and size_bytes(results) + missing_bytes(runs) < limit_bytes:
        return runs
    whole: list[Run] = []
    count = taken_bytes = 0
    for run in runs:
        if isinstance(run, Missing):
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
    return sum([run.size_bytes for run in runs if type(run) is Missing])


def parts_of(runs: Iterable[Run], under_way: Sequence[Flight], begin: Callable[[Cursor, Cursor], Flight]) -> list[Part]:
    """Where each stretch comes from. Missing ones wait for what is under way; only the rest begins a flight."""
    flights = sorted(under_way, key=_AFTER) if under_way else ()
    parts: list[Part] = []
    for run in runs:
        if type(run) is Cached:
            parts.append((run, None))
            continue
        if not flights:
            parts.append((run, begin(run.after, run.to)))
            continue
        place = run.after
        for flight in flights:
            if flight.to <= place or flight.after >= run.to:
                continue
            if flight.after > place:
                parts.append((Missing(place, flight.after), begin(place, flight.after)))
                place = flight.after
            end = min(run.to, flight.to)
            parts.append((Missing(place, end), flight))
            place = end
        if place < run.to:
            parts.append((Missing(place, run.to), begin(place, run.to)))
    return parts


def answer_of(after: Cursor, parts: Sequence[Part]) -> Answer:
    """The parts put together, up to the first that its flight did not answer to the end."""
    whole = Answer(after)
    for part, flight in parts:
        if type(part) is Cached:
            found = part.results
            whole.hits += len(found)
            whole.hit_bytes += size_bytes(found)
            whole.results = whole.results + found if whole.results else found
            whole.to = part.to
            continue
        answer = flight.answer if flight is not None else None
        assert flight is not None, "what is missing is fetched"
        assert answer is not None, "an answer is put together when all its flights are back"
        found, found_bytes = answer.results, flight.answer_bytes
        if found and not (part.after < found[0].cursor and found[-1].cursor <= part.to):
            found = tuple(one for one in found if part.after < one.cursor <= part.to)
            found_bytes = size_bytes(found)
        whole.misses += len(found)
        whole.miss_bytes += found_bytes
        whole.results = whole.results + found if whole.results else found
        if answer.gap is not None and answer.gap > part.after:
            whole.gap = min(answer.gap, part.to)
        whole.to = part.to if answer.to >= part.to else max(part.after, answer.to)
        if whole.to < part.to:
            break
    return whole
