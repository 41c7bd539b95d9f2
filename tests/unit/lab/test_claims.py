"""Judges of claims: what the error leaves open is not judged, and what is judged is what the paper says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.judged_results import Figures, judged, made_up
from tocsin.lab.experiments import registry
from tocsin.lab.experiments.comparisons import all_above, all_within, judge
from tocsin.lab.experiments.declaration import Claim, Judgement, Value
from tocsin.lab.experiments.plan import plan
from tocsin.lab.experiments.report import write_report
from tocsin.lab.experiments.results import MissingCellsError


def edge(claim: str, figures: Figures) -> str:
    return judged("edge-caching", claim, figures).verdict


def prototype(claim: str, figures: Figures) -> str:
    return judged("edge-caching-prototype", claim, figures).verdict


@pytest.mark.parametrize(
    ("around", "spread", "verdict"),
    [(0.98, 0.001, "reproduced"), (0.968, 0.02, "not judged"), (0.8, 0.001, "not reproduced")],
)
def test_the_expected_size_is_judged_with_its_error(around: float, spread: float, verdict: str) -> None:
    def figures(_sweep: str, values: Mapping[str, Value], replication: int) -> dict[str, float]:
        return {"rho_t_mb": float(values["size_mb"]) * (around + spread * (replication - 1))}

    assert edge("expected-size", figures) == verdict


@pytest.mark.parametrize(
    ("around", "spread", "verdict"),
    [(0.9, 0.001, "reproduced"), (0.81, 0.02, "not judged"), (0.7, 0.001, "not reproduced")],
)
def test_times_to_live_are_judged_with_their_error(around: float, spread: float, verdict: str) -> None:
    def figures(_sweep: str, _values: Mapping[str, Value], replication: int) -> dict[str, float]:
        return {"life_s": 10.0, "holding_s": 10.0 * (around + spread * (replication - 1))}

    assert edge("lives", figures) == verdict


@pytest.mark.parametrize(
    ("beyond", "vol", "verdict"),
    [(0.97, 0.0, "reproduced"), (0.6, 0.0, "not reproduced"), (0.97, 1.0, "not reproduced")],
)
def test_what_is_fetched_is_what_was_missed_and_a_volume_that_is_the_same_for_all(
    beyond: float, vol: float, verdict: str
) -> None:
    def figures(_sweep: str, values: Mapping[str, Value], replication: int) -> dict[str, float]:
        volume = 10.0 + (vol if values["policy"] == "lsc" else 0.0)
        return {"vol_gb": volume, "miss_gb": 100.0 + replication, "fetch_gb": volume + beyond * (100.0 + replication)}

    assert edge("fetches", figures) == verdict


@pytest.mark.parametrize(
    ("times", "spread", "verdict"),
    [
        (1.07, 0.001, "reproduced"),
        (0.99, 0.01, "not judged"),
        (0.9, 0.001, "not reproduced"),
        (1.5, 0.01, "not reproduced"),
    ],
)
def test_slightly_more_is_more_and_not_much(times: float, spread: float, verdict: str) -> None:
    def figures(_sweep: str, values: Mapping[str, Value], replication: int) -> dict[str, float]:
        share = times + spread * (replication - 1) if values["policy"] == "ttl" else 0.99
        return {"mean_mb": float(values["size_mb"]) * share}

    assert edge("slightly-more", figures) == verdict


@pytest.mark.parametrize(("lsc", "verdict"), [(0.8, "reproduced"), (1.2, "reproduced"), (0.99, "not reproduced")])
def test_holding_times_are_held_against_times_to_live_on_either_side(lsc: float, verdict: str) -> None:
    def figures(_sweep: str, values: Mapping[str, Value], replication: int) -> dict[str, float]:
        return {"life_s": 10.0, "holding_s": 10.0 * (lsc if values["policy"] == "lsc" else 0.95) + 0.001 * replication}

    assert edge("lives-contrast", figures) == verdict


def test_superior_is_better_in_everything() -> None:
    def figures(fetch: float) -> Figures:
        def found(_sweep: str, values: Mapping[str, Value], replication: int) -> dict[str, float]:
            best = 1.0 if values["policy"] == "ttl" else 0.0
            noise = 0.001 * replication * best
            return {"hit_gb": best + noise, "miss_gb": -best, "latency_s": -best, "fetch_gb": fetch * best}

        return found

    assert edge("ttl-superior", figures(-1.0)) == "reproduced"
    assert edge("ttl-superior", figures(1.0)) == "not reproduced"


def test_one_run_beyond_the_allowed_size_is_one_too_many() -> None:
    def figures(limit: float) -> Figures:
        def found(_sweep: str, values: Mapping[str, Value], replication: int) -> dict[str, float]:
            size = float(values["size_mb"])
            if values["policy"] == "ttl":
                return {"most_mb": 1.5 * size + replication}
            return {"most_mb": limit * size if values["policy"] == "lru" and replication == 2 else 0.9 * size}

        return found

    assert edge("within-budget", figures(1.0)) == "reproduced"
    assert edge("within-budget", figures(1.01)) == "not reproduced"


def test_what_follows_the_hit_ratio_only_within_the_error_is_left_open() -> None:
    ranks = {policy: rank for rank, policy in enumerate(("exp", "lsd", "lscz", "lru", "lsc", "ttl"), 1)}

    def figures(noise: float) -> Figures:
        def found(_sweep: str, values: Mapping[str, Value], replication: int) -> dict[str, float]:
            rank = ranks.get(str(values["policy"]), 0)
            blurred = rank + noise * rank * (replication - 1)
            return {"hit_ratio": rank / 10, "hit_gb": blurred, "miss_gb": -rank, "latency_s": -rank, "fetch_gb": -rank}

        return found

    assert edge("together", figures(0.0)) == "reproduced"
    assert edge("together", figures(3.0)) == "not judged"
    assert (
        edge("together", lambda s, v, r: {**figures(0.0)(s, v, r), "fetch_gb": 1.0 * ranks.get(str(v["policy"]), 0)})
        == "not reproduced"
    )


@pytest.mark.parametrize(
    ("claim", "nothing"), [("fetches", "miss_gb"), ("lives", "life_s"), ("lives-contrast", "life_s")]
)
def test_where_there_is_nothing_to_divide_by_a_claim_is_not_judged(claim: str, nothing: str) -> None:
    def figures(_sweep: str, values: Mapping[str, Value], _replication: int) -> dict[str, float]:
        return {nothing: 0.0 if values["size_mb"] == 150 else 1.0}

    found = judged("edge-caching", claim, figures)
    assert found.verdict == "not judged"
    assert f"{nothing} of " in found.because
    assert found.because.endswith("at 150 MB other than 0")


@pytest.mark.parametrize("name", registry.EXPERIMENTS)
def test_results_in_which_nothing_happened_end_in_a_report(name: str, tmp_path: Path) -> None:
    declared = replace(registry.experiment(name), plots=())
    wanted = plan(declared, quick=True, replications=2)
    results = made_up(wanted, lambda *_: dict.fromkeys((metric.name for metric in declared.metrics), 0.0))
    write_report(results, wanted, tmp_path / "report.md", tmp_path / "plots")
    assert "## Metrics" in (tmp_path / "report.md").read_text("utf-8"), "its end"


def test_a_judge_that_cannot_reckon_is_no_end_of_a_report() -> None:
    claim = Claim(
        "made-up", "", "", lambda results: Judgement("reproduced", str(1 / results.rows[0].metrics["hit_gb"]))
    )
    wanted = plan(registry.experiment("edge-caching"), quick=True, replications=2)
    found = judge(claim, made_up(wanted, lambda *_: {"hit_gb": 0.0}))
    assert found.verdict == "not judged"
    assert found.because == "its figures cannot be computed from this run: float division by zero"


def test_nothing_to_compare_is_no_verdict() -> None:
    for compare in (all_above, lambda none: all_within(none, 0.0, 1.0)):
        with pytest.raises(MissingCellsError):
            compare([])
    found = judged("edge-caching", "optimum", lambda *_: {}, policy="optimum")
    assert found.verdict == "not judged"
    found = judged("edge-caching", "within-budget", lambda *_: {"hit_gb": 0.0, "miss_gb": 0.0})
    assert found.because == "the run has no cells with sizes: a retrieved result"
    found = judged("edge-caching-prototype", "lsc-over-lru", lambda *_: {}, size_kb="5000,9000")
    assert found.because == "the run has no cells with sizes: a size_kb that is too small for all results"


@pytest.mark.parametrize(
    ("gain", "spread", "verdict"),
    [(0.1, 0.001, "reproduced"), (0.0555, 0.03, "not judged"), (0.01, 0.001, "not reproduced")],
)
def test_far_higher_is_left_open_where_the_error_does(gain: float, spread: float, verdict: str) -> None:
    def figures(_sweep: str, values: Mapping[str, Value], replication: int) -> dict[str, float]:
        return {"hit_ratio": 0.5 + (gain + spread * (replication - 1) if values["policy"] == "lsc" else 0.0)}

    assert prototype("lsc-over-lru", figures) == verdict


def gains(by_size: Mapping[int, float], by_size_strict: Mapping[int, float]) -> Figures:
    """How far LSC is above LRU, and where a PUT is no access."""

    def figures(sweep: str, values: Mapping[str, Value], replication: int) -> dict[str, float]:
        more = by_size_strict if sweep == "choices" else by_size
        gain = more[int(values["size_kb"])] if values["policy"] == "lsc" else 0.0
        return {"hit_ratio": 0.5 + gain + replication / 1e6}

    return figures


def test_far_higher_is_asked_at_the_same_sizes_with_either_choice() -> None:
    far, near = {50: 0.0, 100: 0.1, 400: 0.1}, {50: 0.1, 100: 0.1, 400: 0.01}
    assert prototype("lsc-over-lru", gains(far, far)) == "reproduced"
    assert prototype("lsc-over-lru", gains(near, far)) == "depends"
    assert prototype("lsc-over-lru", gains(far, near)) == "depends"
    assert prototype("lsc-over-lru", gains(near, near)) == "not reproduced"


@pytest.mark.parametrize(
    ("hit", "share", "spread", "verdict"),
    [
        (0.6, 0.49, 0.001, "reproduced"),
        (0.6, 0.54, 0.001, "reproduced"),
        (0.6, 0.55, 0.01, "not judged"),
        (0.6, 0.6, 0.001, "not reproduced"),
        (0.48, 0.49, 0.001, "not reproduced"),
    ],
)
def test_around_half_the_latency_has_a_tolerance_and_half_of_the_hits_none(
    hit: float, share: float, spread: float, verdict: str
) -> None:
    def figures(_sweep: str, values: Mapping[str, Value], replication: int) -> dict[str, float]:
        return {"hit_ratio": hit, "latency_s": 1.0 if values["policy"] == "nc" else share + spread * (replication - 1)}

    assert prototype("half-at-100-kb", figures) == verdict


def test_hits_are_half_only_from_the_size_on_from_which_all_larger_ones_have_them() -> None:
    ratios = {10: 0.4, 50: 0.6, 100: 0.4, 400: 0.6, 800: 0.7}

    def figures(_sweep: str, values: Mapping[str, Value], replication: int) -> dict[str, float]:
        return {"hit_ratio": ratios[int(values["size_kb"])] + replication / 1e6, "latency_s": 1.0}

    found = judged("edge-caching-prototype", "half-at-100-kb", figures, size_kb="800,10,50,100,400")
    assert "(above half from 400 KB on), saved 0 (above half at no size)" in found.figures


@pytest.mark.parametrize(("middle", "verdict"), [(0.7, "reproduced"), (0.595, "reproduced"), (0.5, "not reproduced")])
def test_what_grows_falls_at_no_step(middle: float, verdict: str) -> None:
    ratios = {50: 0.9, 100: 0.6, 200: middle, 400: 0.8}

    def figures(_sweep: str, values: Mapping[str, Value], replication: int) -> dict[str, float]:
        hit = ratios[int(values["size_kb"])] if values["policy"] != "nc" else 0.0
        return {"hit_ratio": hit + replication / 1e6, "latency_s": 1 - hit, "fetch_kb": 10 - hit}

    assert judged("edge-caching-prototype", "grows-with-size", figures, size_kb="50,100,200,400").verdict == verdict


def test_growth_needs_two_of_the_sizes_that_the_paper_has() -> None:
    found = judged("edge-caching-prototype", "grows-with-size", lambda *_: {}, size_kb="50,100")
    assert (found.verdict, found.because) == ("not judged", "the run has no cells with sizes: size_kb other than 100")


def test_a_cache_reduces_only_if_it_does_at_every_size() -> None:
    def figures(_sweep: str, values: Mapping[str, Value], replication: int) -> dict[str, float]:
        worse = values["size_kb"] == 400 and values["policy"] == "exp"
        less = 1.0 if values["policy"] == "nc" else 1.1 if worse else 0.5
        return {"latency_s": less + replication / 1e6, "fetch_kb": less}

    found = judged("edge-caching-prototype", "cache-saves", figures)
    assert found.verdict == "not reproduced"
    assert "with exp at 400 KB" in found.figures


def test_what_a_cache_reduces_is_all_that_comes_from_the_cluster() -> None:
    def figures(_sweep: str, values: Mapping[str, Value], replication: int) -> dict[str, float]:
        less = 1.0 if values["policy"] == "nc" else 0.5
        return {"latency_s": less, "miss_kb": less, "fetch_kb": 10.0 / less + replication}

    assert prototype("cache-saves", figures) == "not reproduced"


@pytest.mark.parametrize(("spread", "verdict"), [(1.0, "reproduced"), (20.0, "not judged")])
def test_about_eight_hundred_interests_are_judged_with_their_error(spread: float, verdict: str) -> None:
    def figures(_sweep: str, _values: Mapping[str, Value], replication: int) -> dict[str, float]:
        return {"interests": 890.0 + spread * replication}

    assert prototype("merged-subscriptions", figures) == verdict


@pytest.mark.parametrize(
    ("ratio", "spread", "verdict"),
    [(0.99, 0.01, "reproduced"), (1.0, 0.05, "not judged"), (0.9, 0.01, "not reproduced")],
)
def test_a_queue_agrees_with_theory_where_its_whole_interval_does(ratio: float, spread: float, verdict: str) -> None:
    def figures(_sweep: str, _values: Mapping[str, Value], replication: int) -> dict[str, float]:
        return {"ratio": ratio + spread * (replication - 1)}

    assert judged("queues", "exponential-service", figures).verdict == verdict
