"""Computes the most that any policy could serve from the cache, knowing the future: a proven upper bound for one trace.

A result that is kept until a moment gives a hit for every request up to then, and costs its size times how long it was
kept. A policy whose residents take at most B bytes on average over time (most policies keep this at every moment, which
is harder) has no more hits than the best choice of one moment per result under that single constraint. For every price
λ ≥ 0 of a byte and second, by weak duality, it has no more hits than

    U(λ) = Σ_results max_moments (requests served − λ · size · time kept) + λ · B · span.

The lowest U over all prices is the bound. U is convex, so a search in one dimension finds it; any price gives a true
bound, so the search needs no care. For saved bytes a request counts its size. The bound is concave in B and 0 at 0: a
policy that holds k ≥ 1 times B on average, as `ttl` may, stays below k times the bound.

Requests count at the earliest moment at which they can come: at once for subscribers who are online (the round trip may
be that of an earlier result, and an answer contains everything), and on their return for the others. A later request
costs more room, so the bound stays valid. Hits are those of all requests that may fall into the window; the hit ratio
divides them by the requests that surely do, whatever the policy. The bound holds for policies that do not readmit
results that they have dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tocsin.lab.workloads.events import WorkloadEventKind, WorkloadEvents
from tocsin.lab.workloads.laws import Floats

_SEARCH: Final = 40
_PRICES: Final = (1e-15, 1e6)
_GOLDEN: Final = 0.6180339887498949
# Gains are computed in single precision; this factor keeps rounding from lowering the bound.
_ROUNDING: Final = 1 + 1e-6


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of one interest, by result: its size, and for each request in order of time room and count."""

    size_bytes: Floats
    room_s: NDArray[np.float32]
    """How long the result is kept within the window until this request; infinite beyond the last request."""
    counted: NDArray[np.float32]
    """How many requests may have come within the window up to this one."""
    sure: Floats
    """How many requests for each result come within the window whatever the policy does."""

    @property
    def requests(self) -> float:
        """The number of requests that may come."""
        return float(self.counted[:, -1].sum()) if self.counted.size else 0.0

    @property
    def sure_requests(self) -> float:
        return float(self.sure.sum())

    @property
    def requested_bytes(self) -> float:
        return float((self.counted[:, -1] * self.size_bytes).sum()) if self.counted.size else 0.0

    @property
    def sure_bytes(self) -> float:
        return float((self.sure * self.size_bytes).sum())


@dataclass(frozen=True, slots=True)
class UpperBound:
    """What no policy passes: hit ratio, hits and their bytes; and the fewest bytes that can be missed."""

    hit_ratio: float
    hits: float
    hit_bytes: float
    miss_bytes: float


def requests(events: WorkloadEvents, answered_s: float, begin_s: float, end_s: float) -> list[Requests]:
    """Returns all requests of a window, by interest. A subscriber that stays for `answered_s` has its answer."""
    sessions = _sessions(events)
    produced = events.of(WorkloadEventKind.PRODUCED)
    at_s, interest, size = events.at_s[produced], events.interest[produced], events.size_bytes[produced]
    order = np.argsort(interest, kind="stable")
    bounds = np.searchsorted(interest[order], np.arange(int(interest.max(initial=-1)) + 2))
    holds = _subscriptions(events)
    interest_requests = []
    for number in range(len(bounds) - 1):
        own_indexes = order[bounds[number] : bounds[number + 1]]
        if len(own_indexes) and number in holds:
            interest_requests.append(
                _of_interest(
                    at_s[own_indexes], size[own_indexes], holds[number], sessions, answered_s, window=(begin_s, end_s)
                )
            )
    return interest_requests


def find_upper_bound(all_of_them: list[Requests], budget_bytes: float, span_s: float) -> UpperBound:
    """Returns the bounds of the hit ratio and of the bytes served from the cache, each with its own best price."""
    total = sum(interest_requests.requests for interest_requests in all_of_them)
    total_bytes = sum(interest_requests.requested_bytes for interest_requests in all_of_them)
    room = budget_bytes * span_s

    def hits(price: float) -> float:
        return (
            sum(_best(interest_requests, price * interest_requests.size_bytes) for interest_requests in all_of_them)
            + price * room
        )

    def hit_bytes(price: float) -> float:
        # A request counts its size, and so does its room, so per byte all results are alike.
        return (
            sum(
                _best(
                    interest_requests, np.full(len(interest_requests.size_bytes), price), interest_requests.size_bytes
                )
                for interest_requests in all_of_them
            )
            + price * room
        )

    if not total:
        return UpperBound(0.0, 0.0, 0.0, 0.0)
    most_hits, most_bytes = min(total, _lowest(hits) * _ROUNDING), min(total_bytes, _lowest(hit_bytes) * _ROUNDING)
    sure, sure_bytes = (
        sum(getattr(interest_requests, name) for interest_requests in all_of_them)
        for name in ("sure_requests", "sure_bytes")
    )
    # Hits are requests: a run with more hits than sure requests has had more requests as well.
    return UpperBound(
        min(1.0, most_hits / sure) if sure else 1.0, most_hits, most_bytes, max(0.0, sure_bytes - most_bytes)
    )


def _best(one: Requests, price: Floats, weight: Floats | None = None) -> float:
    """Σ over results of the better of: not kept at all, or kept until the best of its requests."""
    gain = one.counted - price[:, None].astype(np.float32) * one.room_s
    best = np.maximum(gain.max(axis=1), 0.0)
    return float((best * weight).sum() if weight is not None else best.sum(dtype=np.float64))


def _lowest(of: Callable[[float], float]) -> float:
    """Minimizes a convex function over positive prices, by golden-section search on their logarithm."""
    left, right = (float(np.log(price)) for price in _PRICES)
    inner = [right - _GOLDEN * (right - left), left + _GOLDEN * (right - left)]
    values = [of(float(np.exp(log_price))) for log_price in inner]
    lowest = min(values)
    for _ in range(_SEARCH):
        if values[0] < values[1]:
            right, inner[1], values[1] = inner[1], inner[0], values[0]
            inner[0] = right - _GOLDEN * (right - left)
            values[0] = of(float(np.exp(inner[0])))
        else:
            left, inner[0], values[0] = inner[0], inner[1], values[1]
            inner[1] = left + _GOLDEN * (right - left)
            values[1] = of(float(np.exp(inner[1])))
        lowest = min(lowest, *values)
        if right - left < 0.005:
            break
    return lowest


_OnlineTimes = dict[int, tuple[Floats, Floats]]
_HeldSpans = dict[int, list[tuple[int, float, float]]]


def _sessions(events: WorkloadEvents) -> _OnlineTimes:
    """Returns when each subscriber logs in and out."""
    moments: list[dict[int, Floats]] = []
    for kind in (WorkloadEventKind.LOGGED_IN, WorkloadEventKind.LOGGED_OUT):
        chosen = events.of(kind)
        subscriber, at_s = events.subscriber[chosen], events.at_s[chosen]
        order = np.argsort(subscriber, kind="stable")
        people, starts = np.unique(subscriber[order], return_index=True)
        parts = np.split(at_s[order], starts[1:]) if len(people) else []
        moments.append(dict(zip(people.tolist(), parts, strict=True)))
    nothing = np.empty(0)
    return {
        subscriber: (moments[0].get(subscriber, nothing), moments[1].get(subscriber, nothing))
        for subscriber in {*moments[0], *moments[1]}
    }


def _subscriptions(events: WorkloadEvents) -> _HeldSpans:
    """Returns who is subscribed to which interest, and from when to when."""
    holds: _HeldSpans = {}
    begun: dict[tuple[int, int], float] = {}
    chosen = events.of(WorkloadEventKind.SUBSCRIBED) | events.of(WorkloadEventKind.UNSUBSCRIBED)
    columns = (events.at_s, events.kind, events.subscriber, events.interest)
    for at_s, kind, subscriber, interest in zip(*(column[chosen].tolist() for column in columns), strict=True):
        if kind == WorkloadEventKind.SUBSCRIBED:
            begun[subscriber, interest] = at_s
        else:
            holds.setdefault(interest, []).append((subscriber, begun.pop((subscriber, interest)), at_s))
    for (subscriber, interest), at_s in begun.items():
        holds.setdefault(interest, []).append((subscriber, at_s, np.inf))
    return holds


def _of_interest(
    at_s: Floats,
    size: NDArray[Any],
    holds: list[tuple[int, float, float]],
    sessions: _OnlineTimes,
    answered_s: float,
    *,
    window: tuple[float, float],
) -> Requests:
    begin_s, end_s = window
    asked_s = np.full((len(at_s), len(holds)), np.inf)
    sure = np.zeros(len(at_s))
    for column, (subscriber, from_s, to_s) in enumerate(holds):
        own_sessions = sessions.get(subscriber)
        if own_sessions is None or to_s <= begin_s:
            continue
        earliest_s, leaves_s = _find_request_times(at_s, *own_sessions)
        is_due = (at_s >= from_s) & (at_s < to_s) & (earliest_s < min(to_s, end_s))
        stays = np.minimum(leaves_s, to_s) >= earliest_s + answered_s
        # A subscriber that leaves before the answer may ask again at any later return, so also within the window.
        is_possible = is_due & ((earliest_s >= begin_s - answered_s) | ~stays)
        asked_s[:, column] = np.where(is_possible, earliest_s, np.inf)
        sure += is_due & stays & (earliest_s >= begin_s) & (earliest_s + answered_s <= end_s)
    asked_s.sort(axis=1)
    counts = np.cumsum(np.isfinite(asked_s), axis=1)
    room_s = np.maximum(0.0, asked_s - np.maximum(at_s, begin_s)[:, None])
    return Requests(size.astype(np.float64), room_s.astype(np.float32), counts.astype(np.float32), sure)


def _find_request_times(at_s: Floats, logins: Floats, logouts: Floats) -> tuple[Floats, Floats]:
    """Returns when a subscriber can first ask for results of these moments, and when it leaves after that."""
    ins, outs = np.searchsorted(logins, at_s, "right"), np.searchsorted(logouts, at_s, "right")
    later = np.append(logins, np.inf)[np.minimum(ins, len(logins))]
    earliest_s = np.where(ins > outs, at_s, later)
    leaves = np.searchsorted(logouts, earliest_s, "right")
    return earliest_s, np.append(logouts, np.inf)[np.minimum(leaves, len(logouts))]
