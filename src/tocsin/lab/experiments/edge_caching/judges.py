"""The judges of the claims of §V: each looks at its points, at every size or with an open choice at one size.

A judge returns the figures, and whether the claim holds beyond the error: True, False, or None if the error is too
large to say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from tocsin.lab.experiments.comparisons import all_above, all_hold, all_within, several
from tocsin.lab.experiments.declaration import Value
from tocsin.lab.experiments.edge_caching.points import CACHING, EVICTING, Points, span
from tocsin.lab.experiments.results import quotient
from tocsin.lab.experiments.statistics import Estimate, estimate

# The thresholds for the paper's words; docs/lab.md gives the reasons.
_SIMILAR: Final = 0.03  # "very similar" hit ratios differ by at most this
_EQUAL: Final = 0.001  # hit ratios that differ by at most this are equal
_ALMOST: Final = (0.95, 1.05)  # "almost exactly"
_CLOSE: Final = (0.8, 1.05)  # held for "about" the time to live: results that all subscribers have leave earlier
_OVER_EXP: Final = tuple((policy, "exp") for policy in CACHING if policy != "exp")
_SLIGHTLY: Final = 1.1  # "slightly": at most this many times the allowed size


def judge_growth_with_size(points: Points) -> tuple[bool | None, str]:
    small, *_, large = several(points.results, points.sweep, "size_mb")
    changed: list[Estimate] = []
    figures = []
    for metric, sign in (("hit_ratio", 1), ("hit_gb", 1), ("latency_s", -1), ("fetch_gb", -1)):
        changes = {
            policy: points.results.between(metric, points.at(policy, large), points.at(policy, small))
            for policy in CACHING
        }
        changed += [_apply_sign(sign, change) for change in changes.values()]
        least = min(changes, key=lambda policy: abs(changes[policy].mean))
        figures.append(f"{metric} changes least with {least} ({changes[least]})")
    return all_above(changed), f"from {small} to {large} MB: " + ", ".join(figures)


def judge_highest_hit_ratio(points: Points) -> tuple[bool | None, str]:
    gains, closest, least = _compare(points, "hit_ratio", [("ttl", policy) for policy in EVICTING])
    return all_above(gains), f"{closest}: {least}"


def judge_ttl_superior(points: Points) -> tuple[bool | None, str]:
    """TTL has more hit bytes, and less of the other metrics, than every scheme that evicts."""
    improvements, figures = [], []
    for metric, sign in (("hit_gb", 1), ("miss_gb", -1), ("latency_s", -1), ("fetch_gb", -1)):
        gains, closest, least = _compare(points, metric, [("ttl", policy) for policy in EVICTING], sign)
        improvements += gains
        figures.append(f"{metric} {closest.removeprefix('ttl ')} {least}")
    return all_above(improvements), "; ".join(figures)


def judge_lsc_over_lru(points: Points) -> tuple[bool | None, str]:
    gains = points.more("hit_ratio", "lsc", "lru")
    return all_above(gains.values()), f"lsc over lru: {span(gains)}"


def judge_exp_lowest(points: Points) -> tuple[bool | None, str]:
    gains, lowest, least = _compare(points, "hit_ratio", _OVER_EXP)
    return all_above(gains), f"{lowest}: {least}"


def judge_lscz_like_lsd(points: Points) -> tuple[bool | None, str]:
    gains = points.more("hit_ratio", "lscz", "lsd")
    return all_within(gains.values(), -_SIMILAR, _SIMILAR), f"lscz over lsd: {span(gains)}"


def judge_metrics_follow_hit_ratio(points: Points) -> tuple[bool | None, str]:
    """If hit ratios differ by more than a thousandth and the error, do the other metrics follow?"""
    pairs = agree = 0
    against: list[str] = []
    for size in points.sizes:
        for index, first in enumerate(CACHING):
            for other in CACHING[index + 1 :]:
                ratio = points.difference("hit_ratio", first, other, size)
                if abs(ratio.mean) <= max(ratio.half_width, _EQUAL):
                    continue
                sign = 1 if ratio.mean > 0 else -1
                pairs += 1
                follows = {}
                for metric, direction in (("hit_gb", 1), ("miss_gb", -1), ("latency_s", -1), ("fetch_gb", -1)):
                    difference = points.difference(metric, first, other, size)
                    follows[metric] = all_above([_apply_sign(direction * sign, difference)])
                agree += all(follows.values())
                if contrary := [metric for metric, followed in follows.items() if followed is False]:
                    against.append(f"{first} and {other} at {size} MB in {', '.join(contrary)}")
    figures = f"{agree} of {pairs} pairs agree beyond the error, {len(against)} disagree"
    if against:
        return False, f"{figures}, for instance {against[0]}"
    return (True if pairs and agree == pairs else None), figures


def judge_fetched_bytes(points: Points) -> tuple[bool | None, str]:
    """Vol is the same for all policies; the bytes fetched beyond it are almost exactly the missed bytes."""
    is_vol_equal, shares = True, {}
    for policy in CACHING:
        for size in points.sizes:
            own_metrics, vol = (
                {row.cell.seed: row.metrics for row in points.rows(name, size)} for name in (policy, "ttl")
            )
            is_vol_equal = is_vol_equal and all(
                own_metrics[seed]["vol_gb"] == vol[seed]["vol_gb"] for seed in own_metrics
            )
            what = f"{points.sweep}: miss_gb of {policy} at {size} MB"
            beyond = [
                quotient(metrics["fetch_gb"] - metrics["vol_gb"], metrics["miss_gb"], what)
                for metrics in own_metrics.values()
            ]
            shares[f"{policy} at {size} MB"] = estimate(beyond)
    least, most = (pick(shares, key=lambda place: shares[place].mean) for pick in (min, max))
    figures = f"fetched beyond Vol / missed: from {shares[least]} ({least}) to {shares[most]} ({most})"
    return all_hold(is_vol_equal, all_within(shares.values(), *_ALMOST)), figures


def judge_latency_order(points: Points) -> tuple[bool | None, str]:
    first, second = (points.more("latency_s", *pair) for pair in (("lsc", "ttl"), ("lru", "lsc")))
    holds = all_above(gain for gains in (first, second) for gain in gains.values())
    return holds, f"lsc over ttl {span(first)}; lru over lsc {span(second)}"


def judge_holding_times(points: Points) -> tuple[bool | None, str]:
    longer, closest, least = _compare(points, "holding_s", [("ttl", policy) for policy in EVICTING])
    shorter, lowest, least_over_exp = _compare(points, "holding_s", _OVER_EXP)
    return all_above([*longer, *shorter]), f"{closest}: {least}; {lowest}: {least_over_exp}"


def judge_mean_size(points: Points) -> tuple[bool | None, str]:
    """On average over time TTL holds more than every scheme that evicts, and not much more than the allowed size."""
    gains, closest, least = _compare(points, "mean_mb", [("ttl", policy) for policy in EVICTING])
    times = points.ratios("ttl", "mean_mb")
    figures = f"MB {closest.removeprefix('ttl ')} {least}; of the allowed size {span(times)}"
    return all_hold(all_above(gains), all_within(times.values(), -math.inf, _SLIGHTLY)), figures


def judge_size_limit(points: Points) -> tuple[bool | None, str]:
    """Evicting policies keep the allowed size in every single run; TTL exceeds it beyond the error."""
    within_limit, figures = [], []
    excess: dict[Value, Estimate] = {}
    for size in points.sizes:
        most = {policy: max(row.metrics["most_mb"] for row in points.rows(policy, size)) for policy in EVICTING}
        ttl = points.mean("most_mb", "ttl", size)
        within_limit.append(all(largest <= float(size) for largest in most.values()))
        excess[size] = Estimate(ttl.mean - float(size), ttl.half_width, ttl.runs)
        figures.append(f"{size} MB: ttl at most {ttl}, others {max(most.values()):.4g} in any run")
    return all_hold(all(within_limit), all_above(excess.values())), "; ".join(dict.fromkeys((figures[0], figures[-1])))


def judge_expected_size(points: Points) -> tuple[bool | None, str]:
    ratios = points.ratios("ttl", "rho_t_mb")
    return all_within(ratios.values(), *_ALMOST), f"Σ ρT / B {span(ratios)}"


def judge_held_for_ttl(points: Points) -> tuple[bool | None, str]:
    figures = []
    for size in points.sizes:
        life, holding, lsc = (
            points.mean(metric, policy, size)
            for metric, policy in (("life_s", "ttl"), ("holding_s", "ttl"), ("holding_s", "lsc"))
        )
        figures.append(f"{size} MB: lives {life} s, held {holding} s, by lsc {lsc} s")
    ratios = points.ratios("ttl", "holding_s", "life_s")
    return all_within(ratios.values(), *_CLOSE), "; ".join(dict.fromkeys((figures[0], figures[-1])))


def judge_held_for_ttl_beside_lsc(points: Points) -> tuple[bool | None, str]:
    """The relative distance of mean holding times from mean times to live is smaller with TTL than with LSC."""
    gaps, figures = {}, []
    for size in points.sizes:
        distances = {
            policy: {row.cell.seed: abs(1 - points.quotient(row, "holding_s", "life_s")) for row in rows}
            for policy, rows in ((name, points.rows(name, size)) for name in ("ttl", "lsc"))
        }
        gaps[size] = estimate(
            [
                distance - distances["ttl"][seed]
                for seed, distance in distances["lsc"].items()
                if seed in distances["ttl"]
            ]
        )
        ttl, lsc = (estimate(list(distances[policy].values())) for policy in ("ttl", "lsc"))
        figures.append(f"{size} MB: ttl {ttl}, lsc {lsc}")
    return all_above(gaps.values()), "; ".join(dict.fromkeys((figures[0], figures[-1])))


def _compare(
    points: Points, metric: str, pairs: Sequence[tuple[str, str]], sign: int = 1
) -> tuple[list[Estimate], str, str]:
    """Returns how much more (with the sign -1: less) of the metric the first policy of each pair has than the second,
    at every size; and the pair for which that is least, in words and figures."""
    differences = {pair: points.more(metric, *pair) for pair in pairs}
    gains = {pair: [_apply_sign(sign, gap) for gap in gaps.values()] for pair, gaps in differences.items()}
    closest = min(gains, key=lambda pair: min(gain.mean for gain in gains[pair]))
    return [gain for pair in pairs for gain in gains[pair]], " over ".join(closest), span(differences[closest])


def _apply_sign(sign: int, difference: Estimate) -> Estimate:
    return Estimate(sign * difference.mean, difference.half_width, difference.runs)
