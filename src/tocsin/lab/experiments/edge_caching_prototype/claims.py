"""The claims of §VI about the prototype, in our words, and their judges.

The paper's sizes begin at 100 KB. Smaller ones are run for our plots, and do not count in its claims.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Final

from tocsin.lab.experiments.comparisons import all_above, all_hold, is_near, judge_by_choice, verdict
from tocsin.lab.experiments.declaration import Judgement, Value, claim
from tocsin.lab.experiments.results import MissingCellsError, RunResults
from tocsin.lab.experiments.statistics import Estimate
from tocsin.lab.simulators.fast_broker import PAPER

_SIZES: Final = "sizes"
_SMALLEST_KB: Final = 100
_FAR: Final = 0.05
_AROUND: Final = 0.05
_FALL: Final = 0.01
_ONE_FETCH: Final = "a fetch serves all waiting subscribers, so without a cache less is fetched than missed"
_CACHING: Final = tuple(policy for policy in PAPER if policy != "nc")


def _at(policy: Value, size: Value) -> dict[str, Value]:
    return {"policy": policy, "size_kb": size}


def _all_sizes(results: RunResults) -> list[Value]:
    return sorted(results.points(_SIZES, "size_kb"), key=float)


def _sizes(results: RunResults) -> list[Value]:
    """Returns the sizes of the paper, which begin at 100 KB; all sizes if none of those was run."""
    sizes = _all_sizes(results)
    return [size for size in sizes if float(size) >= _SMALLEST_KB] or sizes


@claim(
    "About 3,500 subscriptions of 400 subscribers are merged into about 800 (a check of the set-up, not a finding: "
    "the scenario was built for these numbers)",
    "§VI-A",
)
def _merged_subscriptions(results: RunResults) -> Judgement:
    where = {"policy": "nc", "size_kb": _all_sizes(results)[0]}
    interests, volume, retrieved = (
        results.mean(metric, _SIZES, **where) for metric in ("interests", "vol_kb", "results")
    )
    return verdict(
        is_near(interests, 800, within=100),
        f"{interests} interests, {volume} KB of results for them, {retrieved} results retrieved",
        "the scenario was built for these numbers with the default settings",
    )


@claim("A cache reduces latency and the bytes retrieved from the cluster", "Fig. 7")
def _cache_saves(results: RunResults) -> Judgement:
    """Compares latency and fetched bytes with those without a cache, at every size of the paper."""
    figures, differences = [], []
    for metric in ("latency_s", "fetch_kb"):
        saved = {
            (policy, size): results.difference(metric, _SIZES, _at("nc", size), _at(policy, size))
            for policy in _CACHING
            for size in _sizes(results)
        }
        policy, size = least = min(saved, key=lambda point: saved[point].mean)
        without_cache = results.mean(metric, _SIZES, **_at("nc", size))
        figures.append(
            f"{metric}: {without_cache} without a cache, saved least with {policy} at {size} KB: {saved[least]}"
        )
        differences += list(saved.values())
    return verdict(all_above(differences), "; ".join(figures), _ONE_FETCH)


@claim("With the cache size hit ratios grow, latency and fetches fall, in all schemes", "Fig. 7")
def _grows_with_size(results: RunResults) -> Judgement:
    """The metrics improve from the paper's smallest size to its largest, and get worse at no step between."""
    sizes = _sizes(results)
    if len(sizes) < 2:
        raise MissingCellsError(f"{_SIZES}: size_kb other than {sizes[0]}")
    small, large = sizes[0], sizes[-1]
    without_cache = {
        metric: results.mean(metric, _SIZES, **_at("nc", small)).mean for metric in ("latency_s", "fetch_kb")
    }

    def rise(metric: str, policy: str, low: Value, high: Value) -> Estimate:
        """Returns the rise of the hit ratio, or the relative reduction of the other metrics against no cache."""
        if metric == "hit_ratio":
            return results.difference(metric, _SIZES, _at(policy, high), _at(policy, low))
        less = results.difference(metric, _SIZES, _at(policy, low), _at(policy, high))
        return Estimate(less.mean / without_cache[metric], less.half_width / without_cache[metric], less.runs)

    kinds = [(metric, policy) for metric in ("hit_ratio", *without_cache) for policy in _CACHING]
    ends = {kind: rise(*kind, small, large) for kind in kinds}
    steps = {(*kind, low, high): rise(*kind, low, high) for kind in kinds for low, high in pairwise(sizes)}
    metric, policy, low, high = worst = min(steps, key=lambda step: steps[step].low)
    figures = f"hit ratio from {small} to {large} KB: " + ", ".join(
        f"{name} {ends['hit_ratio', name]}" for name in _CACHING
    )
    figures += f"; the smallest step is {metric} of {policy} from {low} to {high} KB: {steps[worst]}"
    return verdict(all_hold(all_above(ends.values()), all_above(steps.values(), than=-_FALL)), figures, _ONE_FETCH)


def _gains(results: RunResults, sweep: str, policy: str, other: str) -> dict[Value, Estimate]:
    return {
        size: results.difference("hit_ratio", sweep, _at(policy, size), _at(other, size)) for size in _sizes(results)
    }


def _describe(gains: Mapping[Value, Estimate]) -> str:
    return ", ".join(f"{size} KB {gain}" for size, gain in gains.items())


@claim("LSC has a far higher hit ratio than LRU", "Fig. 7")
def _lsc_over_lru(results: RunResults) -> Judgement:
    """LSC is far ahead at every size at which results must be evicted: where all results fit, policies are equal."""
    usual, strict = (_gains(results, sweep, "lsc", "lru") for sweep in (_SIZES, "choices"))
    limited_sizes = [
        size for size in usual if any(gains[size].mean or gains[size].half_width for gains in (usual, strict))
    ]
    if not limited_sizes:
        raise MissingCellsError(f"{_SIZES}: a size_kb that is too small for all results")
    figures = f"lsc over lru: {_describe(usual)}; if a PUT is no access: {_describe(strict)}"
    ahead = ", ".join(f"{size} KB" for size, gain in strict.items() if gain.low > _FAR) or "no size"
    because = (
        "if a PUT is an access, both evict nearly the oldest results first; otherwise LSC is far ahead at "
        f"{ahead}; the larger the cache, the less policies differ"
    )
    is_far, is_far_strict = (all_above((gains[size] for size in limited_sizes), than=_FAR) for gains in (usual, strict))
    on = f"whether a PUT is an access for LRU: {_holds(is_far)}"
    return judge_by_choice(is_far, is_far_strict, figures, depends_on=on, refuted_by=because)


def _holds(usual: bool | None) -> str:
    return f"it holds only with {'the usual' if usual else 'the other'} choice"


@claim("At the smallest size TTL does slightly better than LRU and LSC", "Fig. 7")
def _ttl_small(results: RunResults) -> Judgement:
    small = _sizes(results)[0]
    gains_by_cap = {"ten minutes": _over(results, _SIZES, small), "an hour": _over(results, "long-lives", small)}
    figures_by_cap = [
        f"with times to live of at most {lives}: over " + ", ".join(f"{name} {gain}" for name, gain in gains.items())
        for lives, gains in gains_by_cap.items()
    ]
    above = [f"{size} KB" for size in _all_sizes(results) if all_above(_over(results, _SIZES, size).values())]
    figures = f"at {small} KB, ttl {'; '.join(figures_by_cap)}; it is above both at {', '.join(above) or 'no size'}"
    because = (
        "a city's emergencies come in bursts: times to live that are computed from the last minutes reserve space for "
        "interests that no longer find results, and let results expire while space is free"
    )
    short, long = (all_above(gains.values()) for gains in gains_by_cap.values())
    return judge_by_choice(
        short, long, figures, depends_on=f"the longest time to live: {_holds(short)}", refuted_by=because
    )


def _over(results: RunResults, sweep: str, size: Value) -> dict[str, Estimate]:
    places = {other: (_SIZES, _at(other, size)) for other in ("lru", "lsc")}
    return {other: results.between("hit_ratio", (sweep, _at("ttl", size)), place) for other, place in places.items()}


@claim("100 KB already make more than half of the results hits and save around half of the latency", "Fig. 7")
def _half_at_100_kb(results: RunResults) -> Judgement:
    """At 100 KB: are more than half of the results hits, and is around half of the latency saved, or more?"""
    size = next((swept_size for swept_size in _all_sizes(results) if float(swept_size) == _SMALLEST_KB), None)
    if size is None:
        raise MissingCellsError(f"{_SIZES}: size_kb = {_SMALLEST_KB}")
    policy_figures, holds = [], {}
    for policy in _CACHING:
        hit, saved = _shares(results, policy, size)
        holds[policy] = all_above((hit, replace(saved, mean=saved.mean + _AROUND)), than=0.5)
        hits_from, saved_from = (_from(results, policy, which) for which in (0, 1))
        policy_figures.append(f"{policy}: hits {hit} (above half {hits_from}), saved {saved} (above half {saved_from})")
    without_cache = results.mean("latency_s", _SIZES, **_at("nc", size))
    figures = f"at {size} KB, of a latency of {without_cache} s without a cache: " + "; ".join(policy_figures)
    holding, failing = ([name for name, answer in holds.items() if answer is expected] for expected in (True, False))
    if holding and failing:
        return Judgement(
            "depends", figures, f"the policy: it holds for {', '.join(holding)}, and not for {', '.join(failing)}"
        )
    why = "how much of the hour fits into 100 KB depends on what the channels find, which the paper does not say"
    return verdict(None if None in holds.values() else bool(holding), figures, why)


def _shares(results: RunResults, policy: str, size: Value) -> tuple[Estimate, Estimate]:
    """Returns the share of hits, and the share of the latency without a cache that is saved."""
    remaining = results.ratio("latency_s", (_SIZES, _at(policy, size)), (_SIZES, _at("nc", size)))
    return results.mean("hit_ratio", _SIZES, **_at(policy, size)), replace(remaining, mean=1 - remaining.mean)


def _from(results: RunResults, policy: str, which: int) -> str:
    """Returns from which swept size on a share is above half beyond the error."""
    first = None
    for size in reversed(_all_sizes(results)):
        if _shares(results, policy, size)[which].low <= 0.5:
            break
        first = size
    return "at no size" if first is None else f"from {first} KB on"
