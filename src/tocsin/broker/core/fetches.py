"""Pending fetches and the answers that wait for them. Misses of the same range share one fetch.

Many subscribers lack the same results after an interruption; the cluster is asked for them once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from tocsin.broker.core.actions import Action, DeliveryReason, Fetch
from tocsin.broker.core.cohorts import CohortSnapshot, FrontendState
from tocsin.broker.core.events import FetchSucceeded
from tocsin.broker.core.settings import CoreSettings
from tocsin.rules.caching.entries import BrokerResult, CachedRun, CacheRun, MissingRun, size_bytes
from tocsin.rules.model.cursors import Cursor

if TYPE_CHECKING:
    from tocsin.broker.core.interest_state import InterestState


class PendingFetch:
    """A fetch of `(after, to]` that has no answer yet. `is_announced`: it brings newly announced results; otherwise
    `waiting` has the answers that need it."""

    __slots__ = ("after", "answer", "answer_bytes", "fetch", "interest_state", "is_announced", "to", "waiting")

    def __init__(self, fetch: Fetch, state: InterestState, is_announced: bool) -> None:
        self.fetch = fetch
        self.after = fetch.after
        self.to = fetch.to
        self.interest_state = state
        self.is_announced = is_announced
        self.answer: FetchSucceeded | None = None
        self.answer_bytes = 0
        self.waiting: list[PendingAnswer] = []


class SharedFetch:
    """The part `(after, to]` of a fetch that was begun for another answer."""

    __slots__ = ("after", "fetch", "to")

    def __init__(self, fetch: PendingFetch, after: Cursor, to: Cursor) -> None:
        self.fetch = fetch
        self.after = after
        self.to = to


# A part of an answer comes from the cache, from a fetch of its own, or from a fetch that is already under way.
_AnswerPart = CachedRun | PendingFetch | SharedFetch


class PendingAnswer:
    """An answer that waits for fetches. `receivers` pairs each subscription with its `turn` when it asked; `groups` are
    cohort snapshots that asked together."""

    __slots__ = ("after", "asked", "groups", "lacking", "parts", "receivers", "to", "why")

    def __init__(
        self,
        after: Cursor,
        to: Cursor,
        why: DeliveryReason,
        receivers: list[tuple[FrontendState, int]],
        groups: list[CohortSnapshot],
    ) -> None:
        self.after = after
        self.to = to
        self.why = why
        self.receivers = receivers
        self.groups = groups
        self.parts: list[_AnswerPart] = []
        # The number of fetches that have not been answered.
        self.lacking = 0
        self.asked: AnswerKey = (after, to, why is DeliveryReason.PULLED)


# The range, and whether it was pulled. Pulls and catch-ups of the same range are kept apart.
AnswerKey = tuple[Cursor, Cursor, bool]
# The cursor up to which the parts can be delivered, their results, and the end of a gap.
_Delivered = tuple[Cursor, tuple[BrokerResult, ...], Cursor | None]
# Hits, their bytes, misses, their bytes.
_Counts = tuple[int, int, int, int]


_AFTER: Final = attrgetter("after")


class Fetches:
    """The fetches under way, by number. A failed fetch is retried after `fetch_retry_s`."""

    def __init__(self, settings: CoreSettings) -> None:
        self._settings = settings
        self._pending: dict[int, PendingFetch] = {}
        self._begun = 0
        # When failed fetches are retried. All wait equally long, so that they are in the order of time.
        self.retries: deque[tuple[float, int]] = deque()

    def begin(
        self,
        state: InterestState,
        after: Cursor,
        to: Cursor,
        actions: list[Action],
        *,
        is_announced: bool = False,
        most: int | None = None,
    ) -> PendingFetch:
        """Begins a fetch of `(after, to]`, at most `most` results. `is_announced`: it brings new results."""
        self._begun = number = self._begun + 1
        limits = self._settings
        limit = limits.page_results if most is None else most
        fetch = Fetch(number, state.interest, after, to, limit, limits.page_bytes)
        self._pending[number] = pending = PendingFetch(fetch, state, is_announced)
        actions.append(fetch)
        return pending

    def get(self, number: int) -> PendingFetch | None:
        return self._pending.get(number)

    def end(self, number: int) -> None:
        del self._pending[number]

    def forget(self, state: InterestState) -> None:
        """The interest has ended: answers to its fetches will be ignored."""
        for pending in (*state.fetches, state.announced_fetch):
            if pending is not None:
                self.end(pending.fetch.fetch)

    def fail(self, number: int, now_s: float) -> None:
        if number in self._pending:
            self.retries.append((now_s + self._settings.fetch_retry_s, number))

    def retry(self, now_s: float, actions: list[Action]) -> None:
        """Repeats the fetches whose retry is due, if they are still needed."""
        while self.retries and self.retries[0][0] <= now_s:
            pending = self._pending.get(self.retries.popleft()[1])
            if pending is not None:
                actions.append(pending.fetch)


def cut_to_page(runs: list[CacheRun], limit_results: int, limit_bytes: int) -> list[CacheRun]:
    """Cuts the runs to one delivery: at most `limit_results` cached results and about `limit_bytes`, including holes.
    The result that reaches a limit is included, so that every page makes progress."""
    results = [result for run in runs if type(run) is CachedRun for result in run.results]
    if len(results) < limit_results and size_bytes(results) + missing_bytes(runs) < limit_bytes:
        return runs
    page_runs: list[CacheRun] = []
    count = taken_bytes = 0
    for run in runs:
        if isinstance(run, MissingRun):
            page_runs.append(run)
            taken_bytes += run.size_bytes
            if taken_bytes >= limit_bytes:
                return page_runs
            continue
        for index, result in enumerate(run.results):
            count += 1
            taken_bytes += result.size_bytes
            if count >= limit_results or taken_bytes >= limit_bytes:
                if index + 1 < len(run.results):
                    run = type(run)(run.after, result.cursor, run.results[: index + 1])
                page_runs.append(run)
                return page_runs
        page_runs.append(run)
    return page_runs


def missing_bytes(runs: Iterable[CacheRun]) -> int:
    """The bytes missing from the cache, as far as their size is known (holes)."""
    return sum([run.size_bytes for run in runs if type(run) is MissingRun])


def split_runs(
    runs: Iterable[CacheRun], under_way: Sequence[PendingFetch], begin: Callable[[Cursor, Cursor], PendingFetch]
) -> list[_AnswerPart]:
    """Splits the runs into parts. A missing range uses pending fetches; `begin` starts a fetch for the rest."""
    fetches = sorted(under_way, key=_AFTER)
    parts: list[_AnswerPart] = []
    for run in runs:
        if type(run) is CachedRun:
            parts.append(run)
            continue
        cursor = run.after
        for fetch in fetches:
            if fetch.to <= cursor or fetch.after >= run.to:
                continue
            if fetch.after > cursor:
                parts.append(begin(cursor, fetch.after))
                cursor = fetch.after
            end = min(run.to, fetch.to)
            parts.append(SharedFetch(fetch, cursor, end))
            cursor = end
        if cursor < run.to:
            parts.append(begin(cursor, run.to))
    return parts


def join_parts(after: Cursor, parts: Sequence[_AnswerPart]) -> tuple[_Delivered, _Counts]:
    """Joins the parts, up to the first whose fetch did not reach the end of the part."""
    to, gap = after, None
    results: tuple[BrokerResult, ...] = ()
    hits = hit_bytes = misses = miss_bytes = 0
    for part in parts:
        if isinstance(part, CachedRun):
            part_results = part.results
            if part_results:
                hits += len(part_results)
                hit_bytes += size_bytes(part_results)
                results = results + part_results if results else part_results
            to = part.to
            continue
        fetch = part.fetch if isinstance(part, SharedFetch) else part
        answer = fetch.answer
        assert answer is not None, "an answer is put together when all its fetches are back"
        part_results, part_bytes = answer.results, fetch.answer_bytes
        if part_results and not (part.after < part_results[0].cursor and part_results[-1].cursor <= part.to):
            part_results = tuple(result for result in part_results if part.after < result.cursor <= part.to)
            part_bytes = size_bytes(part_results)
        if part_results:
            misses += len(part_results)
            miss_bytes += part_bytes
            results = results + part_results if results else part_results
        if answer.gap is not None and answer.gap > part.after:
            gap = min(answer.gap, part.to)
        if answer.to < part.to:
            to = max(part.after, answer.to)
            break
        to = part.to
    return (to, results, gap), (hits, hit_bytes, misses, miss_bytes)
