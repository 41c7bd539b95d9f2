"""The claims of §V of the paper, in our words, and our claims about further policies.

A claim is data: its judge, and the conditions on which its verdict depends, stand beside its words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tocsin.lab.experiments.comparisons import UndecidedError, all_above
from tocsin.lab.experiments.declaration import Claim, Judgement, Value
from tocsin.lab.experiments.edge_caching import judges
from tocsin.lab.experiments.edge_caching.dependence import PointsJudge, laws, table, verdict
from tocsin.lab.experiments.edge_caching.model import LAWS, OPTIMUM
from tocsin.lab.experiments.edge_caching.points import Points, span
from tocsin.lab.experiments.results import MissingCellsError, RunResults
from tocsin.lab.experiments.statistics import Estimate

_ROUNDING: Final = 1 + 1e-9
# Why a claim may not hold; with policies and choices whose figures show it.
_Reason = str | tuple[Any, ...]

# ---------------------------------------------------------------- why a claim does not hold, or on what it depends

_LSCZ_LIKE_LSD: Final = (
    "LSD weighs the latency of a fetch, which grows with the bytes fetched: an interest whose returning subscribers "
    "miss much counts more."
)
_TOGETHER: Final = (
    "The hit ratio counts results, the other metrics count bytes or fetches: a policy that drops large results has "
    "more hits with fewer bytes, and one fetch serves a whole cohort that misses together."
)
_TTL_SUPERIOR: Final = "These metrics follow from the hits: see the hit ratio above."
_FETCHES: Final = (
    "One fetch serves all subscribers that wait for the same range. So less is fetched than missed where many miss "
    "together: where a new result is evicted before its online subscribers have read it."
)
_LATENCY: Final = "Latencies have the order of the misses, hence of the hit ratios."
_HOLDING: Final = (
    "A full cache evicts as many bytes as arrive: by Little's law the mean holding time of a byte is B divided by the "
    "arrival rate, with every policy. TTL holds longer only by as much as it holds more; policies that prefer small "
    "results hold more results, hence longer."
)
_SLIGHTLY_MORE: Final = (
    "A time to live is a share of B divided by a growth rate that is estimated from few results, and such a quotient "
    "is too large on average: the more so, the shorter the moving average. Where times to live are capped, TTL leaves "
    "a part of B unused; where fetched results enter, it fills its ceiling."
)
_EXPECTED: Final = "Where a time to live is capped, its interest gets less than its share."
_LIVES: Final = "The ceiling drops results before they expire, and results that all subscribers have leave early."
_LIVES_CONTRAST: Final = (
    "By Little's law both hold results for about B divided by the arrival rate on average, which is also the mean "
    "time to live: the means differ by little more than what TTL holds beyond B."
)
_TTL_HIGHEST: Final = (
    ("A hit needs a subscriber that returns within the seconds for which a result can be kept, and that time is the "
    "same whichever interest gets the space. LSC gives the space to the interests with the most offline subscribers, "
    "which is a little better, as long as it does not evict new results."),
    ("ttl", "usual"), ("lsc", "usual"), ("lsc", "newcomer-stays"),
)  # fmt: skip
_LSC_OVER_LRU: Final = (
    ("Where interests differ in popularity, LSC evicts a new result of an unpopular interest before its online "
    "subscribers have read it. Whether a PUT is an access decides the rank of LRU."),
    ("lsc", "usual"), ("lsc", "newcomer-stays"), ("lru", "usual"), ("lru", "put-is-no-access"),
)  # fmt: skip
_EXP_LOWEST: Final = (
    ("Policies that weigh size evict large new results unread and are far below, and so is LRU if a PUT is no "
    "access. An infinite time to live for unknown or zero growth matters only in the first minutes, because hardly "
    "any result is consumed by all subscribers while it is in the cache. Fetched results that enter replace the whole "
    "cache within a second or two; in that time EXP evicts new results of interests with short times to live before "
    "a subscriber has read them."),
    ("exp", "usual"), ("exp", "lives-without-end"), ("exp", "fetched-results-enter"), ("lru", "put-is-no-access"),
)  # fmt: skip


def _with_figures(results: RunResults, words: str, *choices: tuple[str, str]) -> str:
    """Returns the words with the hit ratios of these policies and choices; the words alone if those were not run."""

    def mean(policy: Value, choice: Value, law: Value) -> Estimate:
        return results.mean("hit_ratio", "choices", policy=policy, choice=choice, popularity=law)

    if not choices:
        return words
    try:
        figures = "; ".join(
            f"{law}: " + ", ".join(f"{policy} ({choice}) {mean(policy, choice, law)}" for policy, choice in choices)
            for law in results.points("choices", "popularity")
        )
    except MissingCellsError:
        return words
    (size,) = results.points("choices", "size_mb")
    return f"{words} At {size} MB: {figures}."


# ---------------------------------------------------------------- our claims


def _beats(metric: str, policy: str, unit: str, *, lsc_may_tie: bool = False) -> Callable[[RunResults], Judgement]:
    def judge_difference(results: RunResults) -> Judgement:
        differences: list[Estimate] = []
        figures = []
        for law in laws(results):
            points = Points(results, law)
            for other in results.points("equal-bytes", "budget_of"):
                point = {"policy": policy, "budget_of": other, "popularity": law}
                gains = {
                    size: results.between(
                        metric, ("equal-bytes", {**point, "size_mb": size}), points.at(str(other), size)
                    )
                    for size in points.sizes
                }
                differences += gains.values()
                figures.append(f"{law}, over {other}: {span(gains)}{unit}")
            # Both LSC and ours fill their budget, so the same budget means the same bytes.
            gains = points.more(metric, policy, "lsc")
            differences += [gain for gain in gains.values() if not (lsc_may_tie and gain.low == gain.high == 0)]
            figures.append(f"{law}, over lsc: {span(gains)}{unit}")
        holds = all_above(differences)
        if holds is None:
            raise UndecidedError(f"the error is too large; take more replications. {'; '.join(figures)}")
        return Judgement("reproduced" if holds else "not reproduced", "; ".join(figures))

    return judge_difference


def _distance(results: RunResults) -> Judgement:
    """Judges that no policy passes a bound in any run, and reports how much of the bounds each policy reaches, averaged
    over sizes.

    A policy that holds k ≥ 1 times the allowed size on average, as `ttl` may, is compared with k times the bound,
    because the bounds are concave.
    """
    passes: list[str] = []
    figures: list[str] = []
    for metric, name in (("hit_ratio", "hit ratio"), ("hit_gb", "saved bytes")):
        for law in laws(results):
            for sweep in ("sizes", "modern"):
                try:
                    sizes = results.points(sweep, "size_mb")
                except MissingCellsError:
                    continue  # its one size was not run
                means = _shares(results, (sweep, law), sizes, metric, passes)
                ranked = ", ".join(
                    f"{policy} {means[policy]:.1%}" for policy in sorted(means, key=lambda name: -means[name])
                )
                figures.append(
                    f"{name}, {law}, {sizes[0]} to {sizes[-1]} MB: {ranked}"
                    if sweep == "sizes"
                    else f"at {sizes[0]} MB: {ranked}"
                )
    if passes:
        return Judgement("not reproduced", "; ".join(figures), f"the bound is wrong: exceeded by {', '.join(passes)}")
    return Judgement("reproduced", "; ".join(figures))


def _shares(
    results: RunResults, where: tuple[str, Value], sizes: Sequence[Value], metric: str, passes: list[str]
) -> dict[str, float]:
    """Returns each policy's mean share of the bound, and adds policies that pass it to `passes`."""
    sweep, law = where
    shares: dict[str, list[float]] = {}
    for size in sizes:
        rows = results.select(sweep, {"size_mb": size, "popularity": law})
        policy_rows = [(str(dict(row.cell.values)["policy"]), row) for row in rows]
        bounds = {row.cell.seed: row.metrics[metric] for policy, row in policy_rows if policy == OPTIMUM}
        if not bounds:
            raise MissingCellsError(f"{sweep}: policy={OPTIMUM}")
        for policy, row in policy_rows:
            if policy in (OPTIMUM, "nc"):
                continue
            upper_bound = bounds[row.cell.seed]
            share = row.metrics[metric] / upper_bound if upper_bound else 0.0
            shares.setdefault(policy, []).append(share)
            if share > max(1.0, row.metrics["mean_mb"] / float(size)) * _ROUNDING:
                passes.append(f"{policy} at {size} MB under {law} in {metric}")
    if not shares:
        raise MissingCellsError(f"{sweep}: a policy that may pass the bound")
    return {policy: sum(policy_shares) / len(policy_shares) for policy, policy_shares in shares.items()}


# Name, text and place of the claim; its judge, and why it may not hold.
_PAPER: Final[tuple[tuple[str, str, str, PointsJudge, _Reason], ...]] = (
    ("grows-with-size",
     "With the cache size, hit ratio and hit bytes grow and latency and fetches fall, in all schemes", "Fig. 3, 4",
     judges.judge_growth_with_size, ""),
    ("ttl-highest", "TTL has the highest hit ratio", "Fig. 3", judges.judge_highest_hit_ratio, _TTL_HIGHEST),
    ("ttl-superior", "TTL has more hit bytes, fewer miss bytes, lower latency and fewer fetches than evicting schemes",
     "§V-A", judges.judge_ttl_superior, _TTL_SUPERIOR),
    ("lsc-over-lru", "LSC has a higher hit ratio than LRU", "Fig. 3", judges.judge_lsc_over_lru, _LSC_OVER_LRU),
    ("exp-lowest", "EXP has the lowest hit ratio", "Fig. 3", judges.judge_exp_lowest, _EXP_LOWEST),
    ("lscz-like-lsd", "LSCz and LSD have very similar hit ratios", "Fig. 3", judges.judge_lscz_like_lsd,
     _LSCZ_LIKE_LSD),
    ("together", ("A scheme with a higher hit ratio also has more hit bytes, fewer miss bytes, lower latency and fewer "
     "fetches"), "§V-A", judges.judge_metrics_follow_hit_ratio, _TOGETHER),
    ("fetches", "Vol is the same in all schemes, and what is fetched beyond it is what was missed", "Fig. 3c, 4a",
     judges.judge_fetched_bytes, _FETCHES),
    ("latency-order", "TTL has the lowest latency, then LSC, then LRU", "Fig. 4b",
     judges.judge_latency_order, _LATENCY),
    ("holding", "TTL holds results longest, EXP shortest", "Fig. 4c", judges.judge_holding_times, _HOLDING),
    ("within-budget", "Evicting schemes keep the allowed size, TTL exceeds it at times", "Fig. 5a",
     judges.judge_size_limit, ""),
    ("slightly-more", "TTL holds slightly more than schemes that evict, on average over time", "Fig. 5a",
     judges.judge_mean_size, _SLIGHTLY_MORE),
    ("expected-size", "Σ ρT is almost exactly the allowed size", "Fig. 5a", judges.judge_expected_size, _EXPECTED),
    ("lives", "In the TTL cache results are held for about their time to live", "Fig. 5b", judges.judge_held_for_ttl,
     _LIVES),
    ("lives-contrast", "In the LSC cache holding times are farther from times to live than in the TTL cache", "Fig. 5b",
     judges.judge_held_for_ttl_beside_lsc, _LIVES_CONTRAST),
)  # fmt: skip


def _judge(holds: PointsJudge, because: _Reason) -> Callable[[RunResults], Judgement]:
    reason = (because,) if isinstance(because, str) else because
    return lambda results: verdict(results, holds, _with_figures(results, *reason))


TABLES: Final = tuple(table(law, {says: holds for _, says, _, holds, _ in _PAPER}) for law in LAWS)
CLAIMS: Final = (
    *(Claim(name, says, where, _judge(holds, because)) for name, says, where, holds, because in _PAPER),
    Claim(
        "worth-beats", "Ours: `worth` has a higher hit ratio than TTL and LSC at every size with the same bytes on "
        "average", "beyond the paper", _beats("hit_ratio", "worth", ""),
    ),
    Claim(
        "saving-beats", "Ours: `saving` serves more bytes from the cache than TTL, and no fewer than LSC, at every "
        "size with the same bytes on average", "beyond the paper", _beats("hit_gb", "saving", " GB", lsc_may_tie=True),
    ),
    Claim(
        "optimum",
        "No policy exceeds the upper bounds of hit ratio and saved bytes; the figures are the shares of them reached",
        "beyond the paper", _distance,
    ),
)  # fmt: skip
