"""Declares the edge-caching experiment: Table II in full, every policy, both laws of popularity."""

from __future__ import annotations

from typing import Final

from tocsin.lab.experiments.declaration import (
    Axis,
    Experiment,
    ExperimentParameter,
    Metric,
    Plot,
    Sweep,
    Value,
    along,
)
from tocsin.lab.experiments.edge_caching.claims import CLAIMS, TABLES
from tocsin.lab.experiments.edge_caching.model import CHOICES, LAWS, MODERN, OPTIMUM, check, model
from tocsin.lab.experiments.edge_caching.points import CACHING, TOUCHED, USUAL
from tocsin.lab.simulators.fast_broker import OURS, PAPER

SIZES: Final = (50, 100, 200, 300, 400, 500)
QUICK_SIZES: Final = (150, 500)
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
    about="Ten thousand subscribers who come and go, ten subscriptions each to a thousand interests, and a broker "
    "whose cache holds a few seconds to a minute of what is made: which policy serves most from the cache? The "
    "broker's core is the live one. One trace per seed serves all policies and sizes.",
    source="Uddin, Venkatasubramanian, Edge Caching for Enriched Notifications Delivery in Big Active Data, 2018, §V",
    model=model,
    check=check,
    parameters=(
        ExperimentParameter("policy", "lsc", f"one of {', '.join(_PLAYED)}; {OPTIMUM} is the bound of all",
                  among=(*_PLAYED, OPTIMUM)),
        ExperimentParameter("size_mb", 200, "the cache's budget, in megabytes of the whole table", least=1),
        ExperimentParameter("popularity", "uniform", "which interests subscribers choose: uniform or zipf", among=LAWS),
        ExperimentParameter("choice", "usual", "what the paper leaves open, one at a time", among=tuple(CHOICES)),
        ExperimentParameter("budget_of",
            "", "if given: the budget is what this policy holds on average with `size_mb`",
                  among=("", *_PLAYED)),
        ExperimentParameter("span_s", 6 * 3600.0, "simulated time", quick=1800.0, least=1, most=1e7),
        ExperimentParameter("warm_up_s", 900.0, "time before counting begins", quick=600.0, least=0, most=1e7),
        ExperimentParameter("scale", 1.0, "the share of Table II: of its subscribers, interests and bytes", quick=0.03,
                  least=0.02, most=10),
    ),
    sweeps=(
        Sweep(
            "sizes",
            "The paper's policies and ours at every size under both laws; `optimum` is what none can pass.",
            (
                along("policy", (*PAPER, *OURS, OPTIMUM), quick=(*CACHING, *OURS, OPTIMUM)),
                along("size_mb", SIZES, quick=QUICK_SIZES),
                along("popularity", LAWS),
            ),
        ),
        Sweep(
            "equal-bytes",
            "The new policies with just the bytes that `ttl` holds on average with this budget; others fill theirs.",
            (
                Axis(("policy", "budget_of"), tuple((policy, "ttl") for policy in OURS)),
                along("size_mb", SIZES, quick=QUICK_SIZES),
                along("popularity", LAWS),
            ),
        ),
        Sweep(
            "modern",
            "Modern general policies beside them, at one size.",
            (along("policy", (*CACHING, *MODERN, *OURS, OPTIMUM)), along("popularity", LAWS)),
            fixed={"size_mb": 200},
            quick_fixed={"size_mb": QUICK_SIZES[0]},
        ),
        Sweep(
            "choices",
            "What the paper leaves open, one choice at a time, each with the policies that it can touch. The effect of "
            "a choice is a difference between runs of this sweep, for which three quarters of an hour will do; a quick "
            "run has its own time. Hit ratios are higher than after six hours: nobody has been away for long.",
            (Axis(("policy", "choice"), _CHOICES, _QUICK_CHOICES), along("popularity", LAWS)),
            fixed={"size_mb": 200, "span_s": 2_700.0},
            # The sweep of sizes has already run this size.
            quick_fixed={"size_mb": QUICK_SIZES[0]},
        ),
    ),
    metrics=(
        Metric("hit_ratio", "", "share of results that came from the cache, of all that subscribers retrieved"),
        Metric("hit_gb", "GB", "bytes that subscribers got from the cache"),
        Metric("miss_gb", "GB", "bytes that they got because they were fetched for them"),
        Metric("fetch_gb", "GB", "what came from the cluster: Vol, and what was missing, once for all who wait for it"),
        Metric("vol_gb", "GB", "Vol: what the cluster made for the broker"),
        Metric("latency_s", "s", "mean over results: round trips and transfers, the cluster's for what was missing"),
        Metric("retrieval_s", "s", "the same, mean over retrievals of any number of results"),
        Metric("holding_s", "s", "mean time between a result's arrival in the cache and its leaving"),
        Metric("mean_mb", "MB", "cache size, averaged over time"),
        Metric("most_mb", "MB", "largest cache size"),
        Metric("rho_t_mb", "MB", "Σ ρ·T, what the times to live promise the cache to hold"),
        Metric("life_s", "s", "mean time to live of an arriving result"),
    ),
    plots=(
        *_figures(),
        Plot("modern", "Hit ratio beside modern general policies", "modern", x="policy", y="hit_ratio",
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
    notes="Sizes and bytes are those of the whole table, whatever its `scale`. Round trips are constant: 250 ms to a "
    "subscriber, 500 ms to the cluster; transfers (1 and 10 MB/s) count in latencies. Links have no contention: nobody "
    "waits for somebody else's transfer. TTL may hold up to twice the size at a moment; at that ceiling it drops what "
    "expires first (EXP), but for the choice `no-ceiling`. Table II prints a lognormal duration of subscriptions and "
    "leaves open whether they are renewed; here they last for the whole run, but for the choices `subscriptions-end` "
    "and `subscriptions-are-renewed`. Fetches of the same range are one, so less is fetched than missed, above all "
    "without a cache.",
)  # fmt: skip
