"""Declares the prototype's experiment.

Its parameters are those of Table III, and what the paper leaves open, so that a claim can be judged under each choice.
"""

from __future__ import annotations

from typing import Final

from tocsin.lab.experiments.declaration import Experiment, ExperimentParameter, Metric, Plot, Sweep, along, claims_of
from tocsin.lab.experiments.edge_caching_prototype import claims
from tocsin.lab.experiments.edge_caching_prototype.model import SWEPT, model

_SIZES: Final = (10, 20, 50, 100, 200, 400, 800, 1600)
_QUICK: Final = (50, 100, 400)

EXPERIMENT: Final = Experiment(
    name="edge-caching-prototype",
    title="Edge caching: the prototype's hour in a city",
    about="An hour of a city in an emergency. 400 subscribers with about 3,500 subscriptions to the seven channels of "
    "Table III log in, log out and move; a record of 200 to 1,000 bytes is published about every ten seconds. The "
    "broker's cache has 10 KB and more (in the paper 100 KB and more). The scenario is the same for every policy, the "
    "broker's core is the live one.",
    source="Uddin, Venkatasubramanian, Edge Caching for Enriched Notifications Delivery in Big Active Data, 2018, §VI",
    model=model,
    parameters=(
        ExperimentParameter("policy", "lsc", f"nc or one of {', '.join(SWEPT[1:])}", among=SWEPT),
        ExperimentParameter("size_kb", 100, "the cache's budget", least=0),
        ExperimentParameter("put_is_access", True, "for lru: whether a new result counts as an access of its cache"),
        ExperimentParameter("ttl_cap_s", 600.0, "for ttl: the longest time to live", least=1),
        ExperimentParameter("span_s", 3600.0, "simulated time", quick=1800.0, least=120, most=1e6),
        ExperimentParameter("subscriber_s", 0.01, "round trip to a subscriber on the same network", least=0, most=1e6),
        ExperimentParameter("cluster_s", 0.1, "round trip to the cluster; a push takes half of it", least=0, most=1e6),
    ),
    sweeps=(
        Sweep(
            "sizes",
            "Every policy at every cache size; nc has no cache, so it is the same at all sizes.",
            (along("policy", SWEPT), along("size_kb", _SIZES, quick=_QUICK)),
        ),
        Sweep(
            "choices",
            "LSC and LRU if only reads are accesses.",
            (along("policy", ("lru", "lsc")), along("size_kb", _SIZES, quick=_QUICK)),
            fixed={"put_is_access": False},
        ),
        Sweep(
            "long-lives",
            "TTL with times to live of up to an hour.",
            (along("policy", ("ttl",)), along("size_kb", _SIZES, quick=_QUICK)),
            fixed={"ttl_cap_s": 3600.0},
        ),
    ),
    metrics=(
        Metric("hit_ratio", "", "share of the retrieved results that came from the cache"),
        Metric("latency_s", "s", "measured mean per result: from the request until the subscriber has it"),
        Metric("fetch_kb", "KB", "bytes from the cluster: Vol, and misses, fetched once for all waiting subscribers"),
        Metric("miss_kb", "KB", "bytes that subscribers got after a fetch from the cluster"),
        Metric("vol_kb", "KB", "Vol: bytes that the channels found"),
        Metric("mean_kb", "KB", "cache size, averaged over time"),
        Metric("results", "", "results that subscribers retrieved"),
        Metric("interests", "", "distinct interests that were subscribed to"),
    ),
    plots=(
        Plot("hit-ratio", "Hit ratio (Fig. 7)", "sizes", x="size_kb", y="hit_ratio", by="policy", log_x=True),
        Plot("latency", "Subscriber latency (Fig. 7)", "sizes", x="size_kb", y="latency_s", by="policy", log_x=True),
        Plot("fetch", "Fetched from the cluster (Fig. 7)", "sizes", x="size_kb", y="fetch_kb", by="policy", log_x=True),
    ),
    claims=claims_of(claims),
    replications=10,
    quick_replications=8,
    notes="Messages travel over links of 1 MB/s to each subscriber and 10 MB/s to the cluster, take half of the round "
    "trip each way, and queue on a busy link. An answer is sent as a whole, so its cached part waits for the missing "
    "part. Latencies are those of the assumed links: what a cache saves can be compared with the paper's, absolute "
    "latencies cannot. A user's location is the last one reported.",
)
