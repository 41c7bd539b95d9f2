"""Declares the prototype's experiment."""

from __future__ import annotations

from typing import Final

from tocsin.lab.experiments.declaration import Experiment, ExperimentParameter, Metric, Plot, Sweep, along, claims_of
from tocsin.lab.experiments.edge_caching_prototype import claims
from tocsin.lab.experiments.edge_caching_prototype.model import SWEPT, model

SIZES: Final = (10, 20, 50, 100, 200, 400, 800, 1600)
QUICK: Final = (50, 100, 400)

EXPERIMENT: Final = Experiment(
    name="edge-caching-prototype",
    title="Edge caching: the prototype's hour in a city",
    about="400 subscribers of a city in an emergency with some 3,500 subscriptions to the seven channels of Table III, "
    "who come, go and move; a publication of 200 to 1,000 bytes about every ten seconds, for an hour; and a broker "
    "with a cache of 10 KB and more (the paper's begin at 100). The scenario is the same for every policy, the "
    "broker's core is the live one.",
    source="Uddin, Venkatasubramanian, Edge Caching for Enriched Notifications Delivery in Big Active Data, 2018, §VI",
    model=model,
    parameters=(
        ExperimentParameter("policy", "lsc", f"nc or one of {', '.join(SWEPT[1:])}", among=SWEPT),
        ExperimentParameter("size_kb", 100, "the cache's budget", least=0),
        ExperimentParameter("put_is_access", True, "for lru: does a new result count as an access of its cache"),
        ExperimentParameter("ttl_cap_s", 600.0, "for ttl: the longest time to live", least=1),
        ExperimentParameter("span_s", 3600.0, "simulated time", quick=1800.0, least=120, most=1e6),
        ExperimentParameter("subscriber_s", 0.01, "round trip to a subscriber, in the same house", least=0, most=1e6),
        ExperimentParameter(
            "cluster_s", 0.1, "round trip to the cluster, of which a push takes half", least=0, most=1e6
        ),
    ),
    sweeps=(
        Sweep(
            "sizes",
            "Every policy by cache size; nc, which has no cache, is the same at all of them.",
            (along("policy", SWEPT), along("size_kb", SIZES, quick=QUICK)),
        ),
        Sweep(
            "choices",
            "LSC and LRU where only reads are accesses.",
            (along("policy", ("lru", "lsc")), along("size_kb", SIZES, quick=QUICK)),
            fixed={"put_is_access": False},
        ),
        Sweep(
            "long-lives",
            "TTL where results may live for an hour.",
            (along("policy", ("ttl",)), along("size_kb", SIZES, quick=QUICK)),
            fixed={"ttl_cap_s": 3600.0},
        ),
    ),
    metrics=(
        Metric("hit_ratio", "", "share of results that came from the cache, of all that subscribers retrieved"),
        Metric("latency_s", "s", "mean over results, measured: from asking until the subscriber has it"),
        Metric("fetch_kb", "KB", "what came from the cluster: Vol, and what was missing, once for all who wait for it"),
        Metric("miss_kb", "KB", "bytes that subscribers got because they were fetched for them"),
        Metric("vol_kb", "KB", "Vol: what the channels found"),
        Metric("mean_kb", "KB", "cache size, averaged over time"),
        Metric("results", "", "results that subscribers retrieved"),
        Metric("interests", "", "different interests that were subscribed to"),
    ),
    plots=(
        Plot("hit-ratio", "Hit ratio (Fig. 7)", "sizes", x="size_kb", y="hit_ratio", by="policy", log_x=True),
        Plot("latency", "Subscriber latency (Fig. 7)", "sizes", x="size_kb", y="latency_s", by="policy", log_x=True),
        Plot("fetch", "Fetched from the cluster (Fig. 7)", "sizes", x="size_kb", y="fetch_kb", by="policy", log_x=True),
    ),
    claims=claims_of(claims),
    replications=10,
    quick_replications=8,
    notes="Everything travels over links of 1 MB/s to each subscriber and 10 MB/s to the cluster, half of a round trip "
    "each way, and waits for what is on them already. An answer comes whole, so what is cached of it waits for what is "
    "not. Latencies are those of the assumed links; what a cache saves can be compared with the paper's, their size "
    "cannot. Where a user is, is where it was seen last.",
)
