"""Simulates an hour of a city under one policy with one cache size.

The scenario and the results of its channels do not depend on the policy, so an hour is made once per seed and shared by
all cells.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from tocsin.lab.experiments.declaration import Run
from tocsin.lab.scenarios.city import City, city_scenario
from tocsin.lab.scenarios.scenario import Scenario, load_or_make_scenario
from tocsin.lab.simulators.fast_broker import OURS, PAPER, core_settings, make_caching_settings
from tocsin.lab.simulators.network_broker import Links, Made, simulate_scenario
from tocsin.lab.workloads.city_channels import find

SWEPT: Final = (*PAPER, *OURS)


def model(run: Run) -> Mapping[str, float]:
    span_s = run.number("span_s")
    scenario, results, interests = hour(span_s, run.seed, run.shared)
    caching = make_caching_settings(
        run.text("policy"),
        int(run.number("size_kb") * 1e3),
        put_is_access=bool(run.values["put_is_access"]),
        ttl_cap_s=run.number("ttl_cap_s"),
    )
    links = Links.of_round_trips(run.number("subscriber_s"), run.number("cluster_s"))
    simulator = simulate_scenario(scenario, results, core_settings(caching), links, until_s=span_s, trace=run.trace)
    figures, counts = simulator.figures(), simulator.broker.caches.counters
    return {
        **{name: figures[name] for name in ("hit_ratio", "latency_s", "fetch_kb", "miss_kb", "vol_kb")},
        "mean_kb": simulator.area_bytes_s / span_s / 1e3,
        "results": float(counts.hits + counts.misses),
        "interests": float(interests),
    }


@lru_cache(maxsize=16)
def hour(span_s: float, seed: int, folder: Path | None) -> tuple[Scenario, list[Made], int]:
    """Returns the hour, the same for every policy: its scenario, the results of the channels, and the number of
    interests. The folder keeps the scenario's file."""
    scenario = load_or_make_scenario(
        folder, f"city-{span_s!r}-{seed}", lambda: city_scenario(City(span_s=span_s), seed)
    )
    run = find(scenario)
    return scenario, list[Made](run.list_results()), len(run.interests)
