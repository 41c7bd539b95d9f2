"""Declares the edge-caching experiment: Table II in full, every policy, both laws of popularity.

The paper leaves several choices open. Each is a parameter, so that a claim can be judged under all of them.
"""

from __future__ import annotations

from typing import Final

from tocsin.lab.experiments.declaration import Axis, Experiment, ExperimentParameter, Metric, Plot, Sweep, Value, along
from tocsin.lab.experiments.edge_caching.claims import CLAIMS, TABLES
from tocsin.lab.experiments.edge_caching.model import CHOICES, LAWS, MODERN, OPTIMUM, check, model
from tocsin.lab.experiments.edge_caching.points import CACHING, TOUCHED, USUAL
from tocsin.lab.simulators.fast_broker import OURS, PAPER

_SIZES: Final = (50, 100, 200, 300, 400, 500)
_QUICK_SIZES: Final = (150, 500)
_PLAYED: Final = (*PAPER, *MODERN, *OURS)
_CHOICES: Final = tuple((policy, choice) for choice, policies in TOUCHED.items() for policy in policies)
_QUICK_CHOICES: Final = (
    *((policy, USUAL) for policy in CACHING),
    ("lru", "put-is-no-access"),
    ("lru", "newcomer-stays"),
    ("lsc", "newcomer-stays"),
)


def _figures() -> tuple[Plot, ...]:
    figures = (
        ("hit-ratio", "Hit ratio (Fig. 3a)", "hit_ratio"),
        ("hit-bytes", "Bytes served from the cache (Fig. 3b)", "hit_gb"),
        ("miss-bytes", "Bytes missed (Fig. 3c)", "miss_gb"),
        ("fetch", "Bytes fetched from the cluster, Vol among them (Fig. 4a)", "fetch_gb"),
        ("latency", "Subscriber latency per result (Fig. 4b)", "latency_s"),
        ("holding", "Holding time (Fig. 4c)", "holding_s"),
        ("mean-size", "Time-averaged cache size (Fig. 5a)", "mean_mb"),
        ("most-size", "Maximum cache size (Fig. 5a)", "most_mb"),
    )
    also: dict[str, tuple[tuple[str, dict[str, Value]], ...]] = {
        "fetch": (("vol_gb", {"policy": "ttl"}),),
        "mean-size": (("rho_t_mb", {"policy": "ttl"}),),
    }
    by_size = [
        Plot(f"{name}-{law}", f"{title}, {law}", "sizes", x="size_mb", y=y, by="policy", where={"popularity": law},
             also=also.get(name, ()))
        for name, title, y in figures
        for law in LAWS
    ]  # fmt: skip
    lives = [
        Plot(f"lives-{law}", f"Times to live, and holding times of TTL and LSC (Fig. 5b), {law}", "sizes", x="size_mb",
             y="life_s", where={"policy": "ttl", "popularity": law},
             also=tuple(("holding_s", {"policy": policy}) for policy in ("ttl", "lsc")))
        for law in LAWS
    ]  # fmt: skip
    return (*by_size, *lives)


EXPERIMENT: Final = Experiment(
    name="edge-caching",
    title="Edge caching: Table II",
    about="Ten thousand subscribers log in and out; each has ten subscriptions to a thousand interests. The broker's "
    "cache holds the results of a few seconds to a minute. Which policy serves the most results from the cache? The "
    "broker's core is the live one. One workload per seed serves all policies and sizes.",
    source="Uddin, Venkatasubramanian, Edge Caching for Enriched Notifications Delivery in Big Active Data, 2018, §V",
    model=model,
    check=check,
    parameters=(
        ExperimentParameter("policy", "lsc", f"one of {', '.join(_PLAYED)}; {OPTIMUM} is an upper bound for all",
                  among=(*_PLAYED, OPTIMUM)),
        ExperimentParameter("size_mb", 200, "the cache's budget in megabytes, for the whole of Table II", least=1),
        ExperimentParameter("popularity", "uniform", "which interests subscribers choose: uniform or zipf", among=LAWS),
        ExperimentParameter("choice", "usual", "a choice that the paper leaves open", among=tuple(CHOICES)),
        ExperimentParameter("budget_of",
            "", "if given, the budget is the mean cache size of this policy with `size_mb`",
                  among=("", *_PLAYED)),
        ExperimentParameter("span_s", 6 * 3600.0, "simulated time", quick=1800.0, least=1, most=1e7),
        ExperimentParameter("warm_up_s", 900.0, "time before counting begins", quick=600.0, least=0, most=1e7),
        ExperimentParameter("scale", 1.0, "the share of Table II: of its subscribers, interests and bytes", quick=0.03,
                  least=0.02, most=10),
    ),
    sweeps=(
        Sweep(
            "sizes",
            "The paper's policies and ours at every size under both laws; `optimum` is an upper bound for all.",
            (
                along("policy", (*PAPER, *OURS, OPTIMUM), quick=(*CACHING, *OURS, OPTIMUM)),
                along("size_mb", _SIZES, quick=_QUICK_SIZES),
                along("popularity", LAWS),
            ),
        ),
        Sweep(
            "equal-bytes",
            "The new policies with the mean cache size of `ttl` as their budget, which they fill.",
            (
                Axis(("policy", "budget_of"), tuple((policy, "ttl") for policy in OURS)),
                along("size_mb", _SIZES, quick=_QUICK_SIZES),
                along("popularity", LAWS),
            ),
        ),
        Sweep(
            "modern",
            "The same policies and modern general-purpose ones, at one size.",
            (along("policy", (*CACHING, *MODERN, *OURS, OPTIMUM)), along("popularity", LAWS)),
            fixed={"size_mb": 200},
            quick_fixed={"size_mb": _QUICK_SIZES[0]},
        ),
        Sweep(
            "choices",
            "The choices that the paper leaves open, one at a time, each with the policies that it affects. The effect "
            "of a choice is the difference between two runs of this sweep, so 45 simulated minutes are enough (a quick "
            "run has its own time). Hit ratios are higher than after six hours: no subscriber was offline for long.",
            (Axis(("policy", "choice"), _CHOICES, _QUICK_CHOICES), along("popularity", LAWS)),
            fixed={"size_mb": 200, "span_s": 2_700.0},
            # The sweep of sizes has already run this size.
            quick_fixed={"size_mb": _QUICK_SIZES[0]},
        ),
    ),
    metrics=(
        Metric("hit_ratio", "", "share of the retrieved results that came from the cache"),
        Metric("hit_gb", "GB", "bytes that subscribers got from the cache"),
        Metric("miss_gb", "GB", "bytes that subscribers got after a fetch from the cluster"),
        Metric("fetch_gb", "GB", "bytes from the cluster: Vol, and misses, fetched once for all waiting subscribers"),
        Metric("vol_gb", "GB", "Vol: bytes that the cluster produced for the broker"),
        Metric("latency_s", "s", "mean per result: round trips and transfers; for misses also those to the cluster"),
        Metric("retrieval_s", "s", "the same, mean per retrieval of any number of results"),
        Metric("holding_s", "s", "mean time that a result stays in the cache"),
        Metric("mean_mb", "MB", "cache size, averaged over time"),
        Metric("most_mb", "MB", "largest cache size"),
        Metric("rho_t_mb", "MB", "Σ ρ·T, the cache size that the times to live aim at"),
        Metric("life_s", "s", "mean time to live of an arriving result"),
    ),
    plots=(
        *_figures(),
        Plot("modern", "Hit ratio, with modern general-purpose policies", "modern", x="policy", y="hit_ratio",
             by="popularity"),
        Plot("choices", "Hit ratio by open choice, uniform", "choices", x="choice", y="hit_ratio", by="policy",
             where={"popularity": "uniform"}),
        Plot("choices-zipf", "Hit ratio by open choice, zipf", "choices", x="choice", y="hit_ratio", by="policy",
             where={"popularity": "zipf"}),
    ),
    claims=CLAIMS,
    tables=TABLES,
    replications=10,
    quick_replications=5,
    notes="Sizes and bytes are those of the whole of Table II, at any `scale`. Round trips are constant: 250 ms to a "
    "subscriber, 500 ms to the cluster; transfers (1 and 10 MB/s) count in latencies. Links have no contention: no "
    "transfer waits for another. TTL may hold up to twice the budget for a moment; at that ceiling it drops what "
    "expires first (EXP), except with the choice `no-ceiling`. Table II has a lognormal duration of subscriptions and "
    "does not say whether they are renewed. Here they last for the whole run, except with the choices "
    "`subscriptions-end` and `subscriptions-are-renewed`. Concurrent fetches of the same range are merged, so less is "
    "fetched than missed, above all without a cache.",
)  # fmt: skip
