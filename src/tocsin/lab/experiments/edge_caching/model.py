"""Runs one cell of Table II: one policy, cache size and law of popularity; or computes the bound of all policies.

`budget_of` gives a policy the mean size that another policy had, because `ttl` may hold more than its budget on
average; so both are compared with the same number of bytes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from tocsin.lab.atomic_files import AtomicFile
from tocsin.lab.experiments.declaration import Run, Value
from tocsin.lab.experiments.edge_caching.optimum import find_upper_bound, requests
from tocsin.lab.simulators.fast_broker import FastBrokerSim, RoundTrips, core_settings, make_caching_settings
from tocsin.lab.workloads.edge_caching import EdgeWorkload, edge_events
from tocsin.lab.workloads.events import WorkloadEvents
from tocsin.rules.caching.caches import ResultCaches
from tocsin.rules.caching.settings import CachingSettings
from tocsin.wire.errors import InputError

MODERN: Final = ("s3fifo", "sieve", "gdsf", "wtinylfu")
OPTIMUM: Final = "optimum"
LAWS: Final = ("uniform", "zipf")
# The choices that the paper leaves open, one at a time; `usual` is what the live broker does. A first time to live is
# never longer than the cap, so it cannot be infinite alone.
CHOICES: Final[dict[str, dict[str, Any]]] = {
    "usual": {},
    "put-is-no-access": {"put_is_access": False},
    "newcomer-stays": {"newcomer_may_go": False},
    "newest-of-equals-goes": {"ties": "newest"},
    "largest-of-equals-goes": {"ties": "largest"},
    "lives-without-cap": {"ttl_cap_s": 1e9},
    "lives-without-end": {"ttl_first_s": 1e9, "ttl_cap_s": 1e9},
    "first-life-30-s": {"ttl_first_s": 30.0},
    "equal-weights": {"weights": "equal"},
    "averages-of-1-minute": {"rate_window_s": 60.0},
    "averages-of-1-hour": {"rate_window_s": 3600.0},
    "no-ceiling": {"ceiling": 1e6},
    "latency-of-the-last-fetch": {"latency_share": 1.0},
    "fetched-results-enter": {"fetched_enters": True},
    "subscriptions-end": {"lifetimes": "once"},
    "subscriptions-are-renewed": {"lifetimes": "renewed"},
}
_STEP_S: Final = 300.0


def check(values: Mapping[str, Value]) -> None:
    """Raises `InputError` if little would be left to count."""
    warm_up_s, span_s = float(values["warm_up_s"]), float(values["span_s"])
    if warm_up_s > span_s / 2:
        raise InputError(
            f"warm_up_s: must be at most half of span_s = {span_s:g}, got {warm_up_s:g}",
            hint=f"--set warm_up_s={span_s / 2:g}",
        )


def model(run: Run) -> Mapping[str, float]:
    check(run.values)
    workload = _workload_of(run)
    events = edge_events(workload, run.seed, run.shared)
    window = (run.number("warm_up_s"), workload.span_s)
    if run.text("policy") == OPTIMUM:
        return _bound_metrics(run, events, window)
    settings = _make_caching(run, run.text("policy"))
    other_policy = run.text("budget_of")
    if other_policy:
        other_settings = _make_caching(run, other_policy)
        saved = _mean_file(run, other_settings, workload, window)
        if saved is not None and saved.exists():
            mean_mb = float(saved.read_text("utf-8"))
        else:
            mean_mb = _simulate(other_settings, workload, events, window, replace(run, trace=None))["mean_mb"]
        settings = replace(settings, budget_bytes=int(mean_mb * 1e6 * run.number("scale")))
    metrics = _simulate(settings, workload, events, window, run)
    if settings.expiry == "ttl" and (file := _mean_file(run, settings, workload, window)) is not None:
        with AtomicFile(file) as temporary:
            temporary.write_text(repr(metrics["mean_mb"]), "utf-8")
    return metrics


def _mean_file(run: Run, *key: object) -> Path | None:
    """Returns the file for the mean cache size of a run, so that other policies get this budget without running it."""
    digest = hashlib.sha256(repr((*key, run.seed)).encode()).hexdigest()[:24]
    return None if run.shared is None else run.shared / f"mean-{digest}.txt"


def _workload_of(run: Run) -> EdgeWorkload:
    """Table II, or a part of it: fewer subscribers and interests, with as many subscribers for each interest."""
    scale = run.number("scale")
    chosen = CHOICES[run.text("choice")]
    return EdgeWorkload(
        subscribers=round(10_000 * scale),
        interests=round(1_000 * scale),
        span_s=run.number("span_s"),
        popularity=run.text("popularity"),
        lifetimes=chosen.get("lifetimes", "whole"),
    )


def _make_caching(run: Run, policy: str) -> CachingSettings:
    chosen = {name: value for name, value in CHOICES[run.text("choice")].items() if name != "lifetimes"}
    budget = int(run.number("size_mb") * 1e6 * run.number("scale"))
    return make_caching_settings(policy, budget, **chosen)


def _simulate(
    settings: CachingSettings, workload: EdgeWorkload, events: WorkloadEvents, window: tuple[float, float], run: Run
) -> dict[str, float]:
    simulator = FastBrokerSim(core_settings(settings), workload.interests, trace=run.trace)
    begin_s, end_s = window
    number = simulator.play(events, begin_s)
    before = _counts(simulator)
    simulator.most_bytes = 0
    expected_bytes = []
    at_s = begin_s
    while at_s < end_s:
        at_s = min(end_s, at_s + _STEP_S)
        number = simulator.play(events, at_s, number)
        expected_bytes.append(_expected_bytes(simulator.broker.caches))
    scale = run.number("scale")
    counted = {name: value - before[name] for name, value in _counts(simulator).items()}
    return {
        **_metrics(counted, simulator.trips, end_s - begin_s, scale),
        "most_mb": simulator.most_bytes / 1e6 / scale,
        "rho_t_mb": sum(expected_bytes) / len(expected_bytes) / 1e6 / scale,
    }


def _counts(simulator: FastBrokerSim) -> dict[str, float]:
    """Returns all counters so far; metrics are differences between two moments."""
    names = ("retrievals", "retrievals_missed", "area_bytes_s", "area_results_s", "lives_s")
    return {**asdict(simulator.broker.caches.counters), **{name: getattr(simulator, name) for name in names}}


def _metrics(counted: Mapping[str, float], trips: RoundTrips, span_s: float, scale: float) -> dict[str, float]:
    hits, misses, hit_bytes, miss_bytes = (counted[name] for name in ("hits", "misses", "hit_bytes", "miss_bytes"))
    results, retrievals = hits + misses, max(1, counted["retrievals"])
    # Per retrieval and per result: a round trip and the transfer; for misses also those to the cluster.
    transfer_s = (hit_bytes + miss_bytes) / trips.subscriber_bytes_per_s + miss_bytes / trips.cluster_bytes_per_s
    missed_s = counted["retrievals_missed"] * trips.to_cluster_s
    return {
        "hit_ratio": hits / results if results else 0.0,
        "hit_gb": hit_bytes / 1e9 / scale,
        "miss_gb": miss_bytes / 1e9 / scale,
        "fetch_gb": (counted["arrived_bytes"] + counted["fetched_bytes"]) / 1e9 / scale,
        "vol_gb": counted["arrived_bytes"] / 1e9 / scale,
        "latency_s": trips.to_subscriber_s + (transfer_s + misses * trips.to_cluster_s) / max(1, results),
        "retrieval_s": trips.to_subscriber_s + (transfer_s + missed_s) / retrievals,
        "holding_s": counted["area_results_s"] / max(1, counted["admitted"] + counted["filled"]),
        "life_s": counted["lives_s"] / max(1, counted["arrived"]),
        "mean_mb": counted["area_bytes_s"] / span_s / 1e6 / scale,
    }


def _expected_bytes(caches: ResultCaches) -> float:
    """Σ ρ·T: the bytes that the caches are expected to hold."""
    return sum(cache.rates.growth_bytes_s * cache.ttl_s for cache in caches)


def _bound_metrics(run: Run, events: WorkloadEvents, window: tuple[float, float]) -> dict[str, float]:
    """Returns the bound's metrics. It has no latency, holding time or largest size: those are NaN."""
    scale = run.number("scale")
    interest_requests = requests(events, answer_time_s(RoundTrips()), *window)
    upper_bound = find_upper_bound(interest_requests, run.number("size_mb") * 1e6 * scale, window[1] - window[0])
    unknown = dict.fromkeys(
        ("fetch_gb", "vol_gb", "latency_s", "retrieval_s", "holding_s", "most_mb", "rho_t_mb", "life_s"), math.nan
    )
    return {
        **unknown,
        "hit_ratio": upper_bound.hit_ratio,
        "hit_gb": upper_bound.hit_bytes / 1e9 / scale,
        "miss_gb": upper_bound.miss_bytes / 1e9 / scale,
        "mean_mb": run.number("size_mb"),
    }


def answer_time_s(trips: RoundTrips) -> float:
    """The time in which a subscriber surely has its answer: it may wait for another's fetch and then for its own."""
    return 2 * (trips.to_subscriber_s + trips.to_cluster_s)
