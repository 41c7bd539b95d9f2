"""An hour of a city under one policy with one cache size."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tocsin.lab.bodies.edge import Edge, RoundTrips, core_settings
from tocsin.lab.bodies.policies import named
from tocsin.lab.experiments.declaration import Run
from tocsin.lab.scenarios.city import City, city_scenario
from tocsin.lab.workloads.city_channels import city_events, find
from tocsin.lab.workloads.events import Events, kept
from tocsin.rules.caching.settings import CachingSettings

POLICIES: Final = ("lru", "lsc", "lscz", "lsd", "exp", "ttl", "worth", "saving")


def model(run: Run) -> Mapping[str, float]:
    events = hour(run.number("span_s"), run.seed, run.kept)
    caching = CachingSettings(
        budget_bytes=int(run.number("size_kb") * 1e3),
        put_is_access=bool(run.values["put_is_access"]),
        ttl_cap_s=run.number("ttl_cap_s"),
        **named(run.text("policy")),
    )
    trips = RoundTrips(run.number("subscriber_s"), run.number("cluster_s"))
    interests = int(events.interest.max(initial=-1)) + 1
    edge = Edge(core_settings(caching), interests, trips=trips, trace=run.trace)
    edge.play(events, run.number("span_s"))
    figures = edge.broker.caches.figures
    results = max(1, figures.hits + figures.misses)
    transfer_s = (figures.hit_bytes + figures.miss_bytes) / trips.subscriber_bytes_per_s
    transfer_s += figures.miss_bytes / trips.cluster_bytes_per_s
    return {
        "hit_ratio": figures.hit_ratio,
        "latency_s": trips.to_subscriber_s + (transfer_s + figures.misses * trips.to_cluster_s) / results,
        "fetch_kb": (figures.arrived_bytes + figures.fetched_bytes) / 1e3,
        "miss_kb": figures.miss_bytes / 1e3,
        "vol_kb": figures.arrived_bytes / 1e3,
        "mean_kb": edge.area_bytes_s / edge.now_s / 1e3,
        "results": float(results),
        "interests": float(interests),
    }


def hour(span_s: float, seed: int, folder: Path | None) -> Events:
    """Everybody's hour, the same for every policy."""

    def make() -> Events:
        made = city_scenario(City(span_s=span_s), seed)
        return city_events(made, find(made))

    return kept(folder, f"city-{span_s:g}-{seed}", make)
