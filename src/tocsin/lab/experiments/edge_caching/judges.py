"""How the claims of §V are judged: each where its points are, at every size or with an open choice at one.

True: it holds beyond the error; False: it surely does not; None: the error leaves it open. And the figures.
"""

from __future__ import annotations

import math
from typing import Final

from tocsin.lab.experiments.comparisons import both, inside, several, surely
from tocsin.lab.experiments.declaration import Value
from tocsin.lab.experiments.edge_caching.points import CACHING, EVICTING, Points, span
from tocsin.lab.experiments.results import quotient
from tocsin.lab.experiments.statistics import Estimate, estimate

# What the paper's words are held to; docs/lab.md says why.
_SIMILAR: Final = 0.03  # hit ratios that are very similar differ by no more
_TOLD_APART: Final = 0.001  # hit ratios that differ by no more are equal
_ALMOST: Final = (0.95, 1.05)  # almost exactly as much
_CLOSE: Final = (0.8, 1.05)  # held for about the time to live: what everybody has leaves earlier
_SLIGHTLY: Final = 1.1  # at most so many times the allowed size


def grows(points: Points) -> tuple[bool | None, str]:
    small, *_, large = several(points.results, points.sweep, "size_mb")
    changed: list[Estimate] = []
    said = []
    for metric, sign in (("hit_ratio", 1), ("hit_gb", 1), ("latency_s", -1), ("fetch_gb", -1)):
        changes = {
            policy: points.results.between(metric, points.at(policy, large), points.at(policy, small))
            for policy in CACHING
        }
        changed += [_signed(sign, one) for one in changes.values()]
        least = min(changes, key=lambda policy: abs(changes[policy].mean))
        said.append(f"{metric} least of all with {least} ({changes[least]})")
    return surely(changed), f"from {small} to {large} MB: " + ", ".join(said)


def highest(points: Points) -> tuple[bool | None, str]:
    over = {policy: points.more("hit_ratio", "ttl", policy) for policy in EVICTING}
    closest = min(over, key=lambda policy: min(one.mean for one in over[policy].values()))
    good = surely(one for found in over.values() for one in found.values())
    return good, f"ttl over {closest}: {span(over[closest])}"


def superior(points: Points) -> tuple[bool | None, str]:
    """More hit bytes, and less of the others, than every scheme that evicts."""
    found, said = [], []
    for metric, sign in (("hit_gb", 1), ("miss_gb", -1), ("latency_s", -1), ("fetch_gb", -1)):
        over = {policy: points.more(metric, "ttl", policy) for policy in EVICTING}
        better = {policy: [_signed(sign, one) for one in gaps.values()] for policy, gaps in over.items()}
        found += [one for gains in better.values() for one in gains]
        closest = min(better, key=lambda policy: min(one.mean for one in better[policy]))
        said.append(f"{metric} over {closest} {span(over[closest])}")
    return surely(found), "; ".join(said)


def lsc_over_lru(points: Points) -> tuple[bool | None, str]:
    found = points.more("hit_ratio", "lsc", "lru")
    return surely(found.values()), f"lsc over lru: {span(found)}"


def exp_lowest(points: Points) -> tuple[bool | None, str]:
    over = {policy: points.more("hit_ratio", policy, "exp") for policy in CACHING if policy != "exp"}
    lowest = min(over, key=lambda policy: min(one.mean for one in over[policy].values()))
    good = surely(one for found in over.values() for one in found.values())
    return good, f"{lowest} over exp: {span(over[lowest])}"


def lscz_like_lsd(points: Points) -> tuple[bool | None, str]:
    found = points.more("hit_ratio", "lscz", "lsd")
    return inside(found.values(), -_SIMILAR, _SIMILAR), f"lscz over lsd: {span(found)}"


def together(points: Points) -> tuple[bool | None, str]:
    """Pairs of policies whose hit ratios differ surely, and by more than a thousandth: do the others surely follow?"""
    pairs = agree = 0
    against: list[str] = []
    for size in points.sizes:
        for index, one in enumerate(CACHING):
            for other in CACHING[index + 1 :]:
                ratio = points.difference("hit_ratio", one, other, size)
                if abs(ratio.mean) <= max(ratio.half_width, _TOLD_APART):
                    continue
                sign = 1 if ratio.mean > 0 else -1
                pairs += 1
                follows = {}
                for metric, way in (("hit_gb", 1), ("miss_gb", -1), ("latency_s", -1), ("fetch_gb", -1)):
                    by = points.difference(metric, one, other, size)
                    follows[metric] = surely([_signed(way * sign, by)])
                agree += all(follows.values())
                if wrong := [metric for metric, good in follows.items() if good is False]:
                    against.append(f"{one} and {other} at {size} MB in {', '.join(wrong)}")
    said = f"{agree} of {pairs} pairs surely, {len(against)} surely not"
    if against:
        return False, f"{said}, for instance {against[0]}"
    return (True if pairs and agree == pairs else None), said


def fetches(points: Points) -> tuple[bool | None, str]:
    """Vol in every run the same for all; beyond it, almost exactly the miss bytes."""
    same, shares = True, {}
    for policy in CACHING:
        for size in points.sizes:
            mine, vol = ({row.cell.seed: row.metrics for row in points.rows(one, size)} for one in (policy, "ttl"))
            same = same and all(mine[seed]["vol_gb"] == vol[seed]["vol_gb"] for seed in mine)
            what = f"{points.sweep}: miss_gb of {policy} at {size} MB"
            beyond = [quotient(one["fetch_gb"] - one["vol_gb"], one["miss_gb"], what) for one in mine.values()]
            shares[f"{policy} at {size} MB"] = estimate(beyond)
    least, most = (pick(shares, key=lambda place: shares[place].mean) for pick in (min, max))
    said = f"fetched beyond Vol / missed: from {shares[least]} ({least}) to {shares[most]} ({most})"
    return both(same, inside(shares.values(), *_ALMOST)), said


def latency(points: Points) -> tuple[bool | None, str]:
    first, second = (points.more("latency_s", *pair) for pair in (("lsc", "ttl"), ("lru", "lsc")))
    good = surely(one for found in (first, second) for one in found.values())
    return good, f"lsc over ttl {span(first)}; lru over lsc {span(second)}"


def holding(points: Points) -> tuple[bool | None, str]:
    longest = {policy: points.more("holding_s", "ttl", policy) for policy in EVICTING}
    shortest = {policy: points.more("holding_s", policy, "exp") for policy in CACHING if policy != "exp"}
    near = min(longest, key=lambda policy: min(one.mean for one in longest[policy].values()))
    low = min(shortest, key=lambda policy: min(one.mean for one in shortest[policy].values()))
    good = surely(one for found in (*longest.values(), *shortest.values()) for one in found.values())
    return good, f"ttl over {near}: {span(longest[near])}; {low} over exp: {span(shortest[low])}"


def slightly_more(points: Points) -> tuple[bool | None, str]:
    """On average over time TTL holds more than every scheme that evicts, and not much more than the allowed size."""
    over = {policy: points.more("mean_mb", "ttl", policy) for policy in EVICTING}
    near = min(over, key=lambda policy: min(one.mean for one in over[policy].values()))
    more = surely(one for found in over.values() for one in found.values())
    times = points.ratios("ttl", "mean_mb")
    said = f"MB over {near} {span(over[near])}; of the allowed size {span(times)}"
    return both(more, inside(times.values(), -math.inf, _SLIGHTLY)), said


def within(points: Points) -> tuple[bool | None, str]:
    """The evicting ones in every single run; TTL more than allowed, beyond the error."""
    kept, said = [], []
    over: dict[Value, Estimate] = {}
    for size in points.sizes:
        most = {policy: max(row.metrics["most_mb"] for row in points.rows(policy, size)) for policy in EVICTING}
        ttl = points.mean("most_mb", "ttl", size)
        kept.append(all(one <= float(size) for one in most.values()))
        over[size] = Estimate(ttl.mean - float(size), ttl.half_width, ttl.runs)
        said.append(f"{size} MB: ttl at most {ttl}, others {max(most.values()):.4g} in any run")
    return both(all(kept), surely(over.values())), "; ".join(dict.fromkeys((said[0], said[-1])))


def expected(points: Points) -> tuple[bool | None, str]:
    ratios = points.ratios("ttl", "rho_t_mb")
    return inside(ratios.values(), *_ALMOST), f"Σ ρT / B {span(ratios)}"


def lives(points: Points) -> tuple[bool | None, str]:
    said = []
    for size in points.sizes:
        life, held, lsc = (
            points.mean(metric, policy, size)
            for metric, policy in (("life_s", "ttl"), ("holding_s", "ttl"), ("holding_s", "lsc"))
        )
        said.append(f"{size} MB: lives {life} s, held {held} s, by lsc {lsc} s")
    ratios = points.ratios("ttl", "holding_s", "life_s")
    return inside(ratios.values(), *_CLOSE), "; ".join(dict.fromkeys((said[0], said[-1])))


def lives_contrast(points: Points) -> tuple[bool | None, str]:
    """How far mean holding times are from mean times to live, in parts of these: less with TTL than with LSC."""
    gaps, said = {}, []
    for size in points.sizes:
        apart = {
            policy: {row.cell.seed: abs(1 - points.quotient(row, "holding_s", "life_s")) for row in rows}
            for policy, rows in ((one, points.rows(one, size)) for one in ("ttl", "lsc"))
        }
        gaps[size] = estimate([far - apart["ttl"][seed] for seed, far in apart["lsc"].items() if seed in apart["ttl"]])
        ttl, lsc = (estimate(list(apart[policy].values())) for policy in ("ttl", "lsc"))
        said.append(f"{size} MB: ttl {ttl}, lsc {lsc}")
    return surely(gaps.values()), "; ".join(dict.fromkeys((said[0], said[-1])))


def _signed(sign: int, one: Estimate) -> Estimate:
    return Estimate(sign * one.mean, one.half_width, one.runs)
