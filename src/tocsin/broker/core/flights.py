"""Fetches under way, and who waits for them: many misses of the same range are one fetch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tocsin.broker.core.actions import Why
from tocsin.broker.core.cohorts import Frontend, Group
from tocsin.broker.core.events import Fetched
from tocsin.rules.caching.entries import Missing, Result, Run, size_bytes
from tocsin.rules.model.cursors import Cursor


@dataclass(slots=True, eq=False)
class Flight:
    """`(after, to]` of an interest is being fetched: for those who wait, or because it is news."""

    number: int
    after: Cursor
    to: Cursor
    news: bool = False
    answer: Fetched | None = None
    waiting: list[Waiting] = field(default_factory=list)


@dataclass(slots=True, unsafe_hash=True)
class Part:
    """A stretch of an answer: from the cache, or of a flight."""

    after: Cursor
    to: Cursor
    cached: tuple[Result, ...] = ()
    flight: Flight | None = None


@dataclass(slots=True, eq=False)
class Waiting:
    """An answer that lacks something. `askers` with the turn in which each asked, and groups that asked as one."""

    after: Cursor
    to: Cursor
    why: Why
    parts: list[Part]
    lacking: int
    askers: list[tuple[Frontend, int]]
    groups: list[Group]


@dataclass(slots=True, unsafe_hash=True)
class Answer:
    """What can be delivered of the parts, up to `to`."""

    to: Cursor
    results: tuple[Result, ...]
    cached: tuple[Result, ...]
    missed: tuple[Result, ...]
    gap: Cursor | None


def page(runs: list[Run], limit_results: int, limit_bytes: int) -> list[Run]:
    """The runs, as far as their cached results fit one delivery, which has at least one."""
    if all(isinstance(run, Missing) or _fits(run.results, limit_results, limit_bytes, len(runs)) for run in runs):
        return runs
    whole: list[Run] = []
    count = taken_bytes = 0
    for run in runs:
        if isinstance(run, Missing):
            whole.append(run)
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


def parts_of(runs: Iterable[Run], under_way: Iterable[Flight], begin: Callable[[Cursor, Cursor], Flight]) -> list[Part]:
    """Where each stretch comes from. Missing ones wait for what is under way; only the rest begins a flight."""
    flights = sorted(under_way, key=lambda flight: flight.after)
    parts: list[Part] = []
    for run in runs:
        if not isinstance(run, Missing):
            parts.append(Part(run.after, run.to, cached=run.results))
            continue
        place = run.after
        for flight in flights:
            if flight.to <= place or flight.after >= run.to:
                continue
            if flight.after > place:
                parts.append(Part(place, flight.after, flight=begin(place, flight.after)))
                place = flight.after
            end = min(run.to, flight.to)
            parts.append(Part(place, end, flight=flight))
            place = end
        if place < run.to:
            parts.append(Part(place, run.to, flight=begin(place, run.to)))
    return parts


def answer_of(after: Cursor, parts: Sequence[Part]) -> Answer:
    """The parts put together, up to the first that its flight did not answer to the end."""
    results: tuple[Result, ...] = ()
    cached: tuple[Result, ...] = ()
    missed: tuple[Result, ...] = ()
    gap: Cursor | None = None
    to = after
    for part in parts:
        flight = part.flight
        if flight is None:
            results += part.cached
            cached += part.cached
            to = part.to
            continue
        answer = flight.answer
        assert answer is not None, "an answer is put together when all its flights are back"
        found = answer.results
        if found and not (part.after < found[0].cursor and found[-1].cursor <= part.to):
            found = tuple(one for one in found if part.after < one.cursor <= part.to)
        results += found
        missed += found
        if answer.gap is not None and answer.gap > part.after:
            gap = min(answer.gap, part.to)
        to = max(part.after, min(part.to, answer.to))
        if to < part.to:
            break
    return Answer(to, results, cached, missed, gap)


def _fits(results: tuple[Result, ...], limit_results: int, limit_bytes: int, runs: int) -> bool:
    """Surely within a page, though all runs were like this one."""
    return len(results) * runs < limit_results and size_bytes(results) * runs < limit_bytes
