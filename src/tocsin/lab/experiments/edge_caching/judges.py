"""How the claims of §V are judged: each where its points are, at every size or with an open choice at one.

True: it holds beyond the error; False: it surely does not; None: the error leaves it open. And the figures.
"""

from __future__ import annotations

from typing import Final

from tocsin.lab.experiments.declaration import Value
from tocsin.lab.experiments.edge_caching.points import CACHING, EVICTING, Points, both, inside, span, surely
from tocsin.lab.experiments.judging import several
from tocsin.lab.experiments.statistics import Estimate

# Two hit ratios that differ by less are very similar.
_SIMILAR: Final = 0.03


def grows(points: Points) -> tuple[bool | None, str]:
    small, *_, large = several(points.results, points.sweep, "size_mb")
    changed: list[Estimate] = []
    said = []
    for metric, sign in (("hit_ratio", 1), ("hit_gb", 1), ("latency_s", -1), ("fetch_gb", -1)):
        changes = {
            policy: points.results.between(metric, points.at(policy, large), points.at(policy, small))
            for policy in CACHING
        }
        changed += [Estimate(sign * one.mean, one.half_width, one.runs) for one in changes.values()]
        least = min(changes, key=lambda policy: abs(changes[policy].mean))
        said.append(f"{metric} least of all with {least} ({changes[least]})")
    return surely(changed), f"from {small} to {large} MB: " + ", ".join(said)


def highest(points: Points) -> tuple[bool | None, str]:
    over = {policy: points.more("hit_ratio", "ttl", policy) for policy in EVICTING}
    closest = min(over, key=lambda policy: min(one.mean for one in over[policy].values()))
    good = surely(one for found in over.values() for one in found.values())
    return good, f"ttl over {closest}: {span(over[closest])}"


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
                if abs(ratio.mean) <= max(ratio.half_width, 0.001):
                    continue
                sign = 1 if ratio.mean > 0 else -1
                pairs += 1
                follows = {}
                for metric, way in (("hit_gb", 1), ("miss_gb", -1), ("latency_s", -1), ("fetch_gb", -1)):
                    by = points.difference(metric, one, other, size)
                    follows[metric] = surely([Estimate(way * sign * by.mean, by.half_width, by.runs)])
                agree += all(follows.values())
                if wrong := [metric for metric, good in follows.items() if good is False]:
                    against.append(f"{one} and {other} at {size} MB in {', '.join(wrong)}")
    said = f"{agree} of {pairs} pairs surely, {len(against)} surely not"
    if against:
        return False, f"{said}, for instance {against[0]}"
    return (True if pairs and agree == pairs else None), said


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
    return both(all(kept), surely(over.values())), "; ".join((said[0], said[-1]))


def expected(points: Points) -> tuple[bool | None, str]:
    ratios = points.ratios("ttl", "rho_t_mb")
    return inside(ratios.values(), 0.95, 1.05), f"Σ ρT / B {span(ratios)}"


def lives(points: Points) -> tuple[bool | None, str]:
    said = []
    for size in points.sizes:
        life, held, lsc = (
            points.mean(metric, policy, size)
            for metric, policy in (("life_s", "ttl"), ("holding_s", "ttl"), ("holding_s", "lsc"))
        )
        said.append(f"{size} MB: lives {life} s, held {held} s, by lsc {lsc} s")
    ratios = points.ratios("ttl", "holding_s", "life_s")
    return inside(ratios.values(), 0.8, 1.05), "; ".join((said[0], said[-1]))
