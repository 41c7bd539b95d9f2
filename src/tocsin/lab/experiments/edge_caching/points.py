"""The points that judges compare: every policy at every size, or with one open choice at one size; under one law.

A choice is run only with the policies that it can affect. For the others the usual cell counts, which would have the
same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tocsin.lab.experiments.declaration import Value
from tocsin.lab.experiments.results import ResultsRow, RunResults, SweepPoint, quotient
from tocsin.lab.experiments.statistics import Estimate, estimate
from tocsin.lab.simulators.fast_broker import PAPER

CACHING: Final = tuple(policy for policy in PAPER if policy != "nc")
EVICTING: Final = tuple(policy for policy in CACHING if policy != "ttl")
USUAL: Final = "usual"
# The policies that a choice can affect. Only access times and subscriber counts produce equal ranks. With `ttl` a
# newcomer could be evicted only at the ceiling, which the size of the choices sweep does not reach. `lsc` computes
# times to live too: it keeps the same results, but its holding times are compared with them.
_TTL_POLICIES: Final = ("lsc", "exp", "ttl")
TOUCHED: Final[dict[str, tuple[str, ...]]] = {
    USUAL: CACHING,
    "put-is-no-access": ("lru",),
    "newcomer-stays": EVICTING,
    "newest-of-equals-goes": ("lru", "lsc"),
    "largest-of-equals-goes": ("lru", "lsc"),
    "lives-without-cap": _TTL_POLICIES,
    "lives-without-end": _TTL_POLICIES,
    "first-life-30-s": _TTL_POLICIES,
    "equal-weights": _TTL_POLICIES,
    "averages-of-1-minute": _TTL_POLICIES,
    "averages-of-1-hour": _TTL_POLICIES,
    "no-ceiling": ("ttl",),
    "latency-of-the-last-fetch": ("lsd",),
    "fetched-results-enter": CACHING,
    "subscriptions-end": CACHING,
    "subscriptions-are-renewed": CACHING,
}


@dataclass(frozen=True, slots=True)
class Points:
    """Without a choice: the sweep of sizes. With a choice: a policy that it cannot affect counts as usual."""

    results: RunResults
    law: Value
    choice: Value | None = None

    @property
    def sweep(self) -> str:
        return "sizes" if self.choice is None else "choices"

    @property
    def sizes(self) -> list[Value]:
        return self.results.points(self.sweep, "size_mb")

    def at(self, policy: str, size: Value) -> SweepPoint:
        where: dict[str, Value] = {"policy": policy, "size_mb": size, "popularity": self.law}
        if self.choice is not None:
            where["choice"] = self.choice if policy in TOUCHED[str(self.choice)] else USUAL
        return self.sweep, where

    def rows(self, policy: str, size: Value) -> list[ResultsRow]:
        return self.results.select(*self.at(policy, size))

    def mean(self, metric: str, policy: str, size: Value) -> Estimate:
        sweep, where = self.at(policy, size)
        return self.results.mean(metric, sweep, **where)

    def difference(self, metric: str, policy: str, other: str, size: Value) -> Estimate:
        return self.results.between(metric, self.at(policy, size), self.at(other, size))

    def more(self, metric: str, policy: str, other: str) -> dict[Value, Estimate]:
        """Returns how much larger the metric of one policy is than that of another, at every size."""
        return {size: self.difference(metric, policy, other, size) for size in self.sizes}

    def ratios(self, policy: str, metric: str, other: str = "") -> dict[Value, Estimate]:
        """Returns the ratio of two metrics of a policy, or of a metric and the allowed size, paired by run."""
        return {
            size: estimate(
                [
                    self.quotient(row, metric, other) if other else row.metrics[metric] / float(size)
                    for row in self.rows(policy, size)
                ]
            )
            for size in self.sizes
        }

    def quotient(self, row: ResultsRow, metric: str, other: str) -> float:
        values = dict(row.cell.values)
        what = f"{self.sweep}: {other} of {values['policy']} at {values['size_mb']} MB"
        return quotient(row.metrics[metric], row.metrics[other], what)


def span(estimates: Mapping[Value, Estimate]) -> str:
    lowest, highest = (pick(estimates, key=lambda size: estimates[size].mean) for pick in (min, max))
    if lowest == highest:
        return f"{estimates[lowest]} at {lowest} MB"
    return f"from {estimates[lowest]} at {lowest} MB to {estimates[highest]} at {highest} MB"
