"""The probability laws of the workloads, vectorized.

A workload has a million events or more. Drawn as arrays, and not one by one, a million take about a second.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]

_POPULARITY: Final = ("uniform", "zipf")
_CHUNK_ROWS: Final = 1_000


def popularity(law: str, count: int, *, exponent: float = 1.0) -> Floats:
    """The probability of each of `count` choices. Under `zipf`, number k (from 1) has the weight 1/k^exponent."""
    if law not in _POPULARITY:
        raise ValueError(f"popularity: must be one of {', '.join(_POPULARITY)}, got {law}")
    if count < 1:
        raise ValueError(f"popularity: needs something to choose from, got {count}")
    weights = np.ones(count) if law == "uniform" else np.arange(1, count + 1, dtype=np.float64) ** -exponent
    return np.asarray(weights / weights.sum())


def distinct_choices(stream: np.random.Generator, likely: Floats, rows: int, each: int) -> _Ints:
    """Draws this many rows of `each` different choices, without replacement."""
    if not 0 <= each <= len(likely):
        raise ValueError(f"cannot choose {each} different of {len(likely)}")
    # The largest log p + Gumbel noise are a draw without replacement (Efraimidis and Spirakis, in logarithms).
    chosen = np.empty((rows, each), dtype=np.int64)
    logs = np.log(likely)
    for start in range(0, rows, _CHUNK_ROWS):
        size = min(_CHUNK_ROWS, rows - start)
        keys = logs + stream.gumbel(size=(size, len(likely)))
        chosen[start : start + size] = np.argsort(-keys, axis=1, kind="stable")[:, :each]
    return chosen


def lognormal_mean(mu: float, sigma: float) -> float:
    """The mean of a lognormal law with these parameters of its logarithm."""
    return math.exp(mu + sigma * sigma / 2)


def poisson_moments(stream: np.random.Generator, rates_per_s: Floats, span_s: float) -> tuple[Floats, _Ints]:
    """The times of independent Poisson processes over a span, and the process of each; not in order."""
    counts = stream.poisson(rates_per_s * span_s)
    return stream.uniform(0.0, span_s, int(counts.sum())), np.repeat(np.arange(len(rates_per_s)), counts)


def on_off_moments(
    stream: np.random.Generator, people: int, span_s: float, *, on_s: tuple[float, float], off_s: tuple[float, float]
) -> tuple[Floats, _Ints, NDArray[np.bool_]]:
    """Returns when each person goes on or off: times, persons, and whether on. Not in order of time.

    `on_s` and `off_s` are the lognormal parameters of durations in seconds. At the start a person is on with the
    long-run probability, and begins a whole duration.
    """
    mean_on_s, mean_off_s = lognormal_mean(*on_s), lognormal_mean(*off_s)
    on = stream.random(people) < mean_on_s / (mean_on_s + mean_off_s)
    persons = np.arange(people)
    now_s = np.zeros(people)
    moments, all_persons, is_on = [now_s[on]], [persons[on]], [np.ones(int(on.sum()), dtype=np.bool_)]
    while len(persons):
        draws = stream.standard_normal(len(persons))
        mu, sigma = (np.where(on, first, second) for first, second in zip(on_s, off_s, strict=True))
        now_s = now_s + np.exp(mu + sigma * draws)
        is_within = now_s < span_s
        persons, now_s, on = persons[is_within], now_s[is_within], ~on[is_within]
        moments.append(now_s)
        all_persons.append(persons)
        is_on.append(on)
    return np.concatenate(moments), np.concatenate(all_persons), np.concatenate(is_on)


def renewals(
    stream: np.random.Generator, begin_s: Floats, span_s: float, *, lasts_s: tuple[float, float], renewed: bool
) -> tuple[_Ints, Floats, Floats]:
    """Draws lognormal lifetimes that begin at these times and, if renewed, follow each other: slot, begin, end.

    Returns those that begin within the span; an end may lie beyond it.
    """
    mu, sigma = lasts_s
    slot = np.flatnonzero(begin_s < span_s)
    now_s = begin_s[slot]
    slots, begins, ends = [slot], [now_s], [now_s + np.exp(mu + sigma * stream.standard_normal(len(slot)))]
    while renewed and len(slot):
        is_within = ends[-1] < span_s
        slot, now_s = slot[is_within], ends[-1][is_within]
        slots.append(slot)
        begins.append(now_s)
        ends.append(now_s + np.exp(mu + sigma * stream.standard_normal(len(slot))))
    return np.concatenate(slots), np.concatenate(begins), np.concatenate(ends)
