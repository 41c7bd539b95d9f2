"""Explains why a claim does not hold, or on what it depends, with the figures of the open choices."""

from __future__ import annotations

from typing import Final

from tocsin.lab.experiments.declaration import Value
from tocsin.lab.experiments.results import MissingCellsError, RunResults

_C: Final = "choices"

LSCZ_LIKE_LSD: Final = (
    "LSD weighs the latency of a fetch, which grows with what is fetched: interests whose returning subscribers lack "
    "much are dearer."
)
TOGETHER: Final = (
    "Hit ratio counts results and the others count bytes or fetches: a policy that drops large results has more hits "
    "of fewer bytes, and one fetch serves a whole cohort that misses together."
)
TTL_SUPERIOR: Final = "These follow the hits: see the hit ratio above."
FETCHES: Final = (
    "One fetch serves all who wait for the same range, so less is fetched than is missed where many miss together: "
    "where a newcomer is dropped before its online readers have come for it."
)
LATENCY: Final = "It is the order of the misses, hence of the hit ratios."
HOLDING: Final = (
    "While the cache is full, everything that comes in pushes as much out: by Little's law the mean holding time of "
    "bytes is B divided by the arrival rate, whatever is dropped. TTL holds longer only by as much as it holds more; "
    "policies that prefer small results hold more results, hence longer."
)
SLIGHTLY_MORE: Final = (
    "Times to live divide a share of B by a growth that is estimated from few results, and such a quotient is too "
    "large on average: the more so, the shorter the averages. Where lives are capped TTL leaves room unused; where "
    "fetched results enter it fills its ceiling."
)
EXPECTED: Final = "Where a time to live is capped, its interest gets less than its share."
LIVES: Final = "The ceiling drops results before their time, and those that everybody has leave early."

LIVES_CONTRAST: Final = (
    "By Little's law both hold results for about B divided by the arrival rate on average, and so long are times to "
    "live: means differ by little more than what TTL holds beyond B."
)


def _mean(results: RunResults, policy: Value, choice: Value, law: Value) -> str:
    return str(results.mean("hit_ratio", _C, policy=policy, choice=choice, popularity=law))


def _told(results: RunResults, words: str, *asked: tuple[str, str]) -> str:
    """Returns the words with the figures of these choices; the words alone if the choices were not run."""
    try:
        laws = results.points(_C, "popularity")
        figures = "; ".join(
            f"{law}: "
            + ", ".join(f"{policy} ({choice}) {_mean(results, policy, choice, law)}" for policy, choice in asked)
            for law in laws
        )
    except MissingCellsError:
        return words
    (size,) = results.points(_C, "size_mb")
    return f"{words} At {size} MB: {figures}."


def ttl_highest(results: RunResults) -> str:
    return _told(
        results,
        "A hit needs somebody to return within the seconds that a result can be kept, and those are as many whichever "
        "interest gets the room; LSC gives it to the interests with most who are away, which is a little better, as "
        "long as newcomers are not its victims.",
        ("ttl", "usual"), ("lsc", "usual"), ("lsc", "newcomer-stays"),
    )  # fmt: skip


def lsc_over_lru(results: RunResults) -> str:
    return _told(
        results,
        "Where interests differ in popularity, LSC drops a newcomer of an unpopular interest before its online readers "
        "have come for it. Whether a PUT is an access decides where LRU stands.",
        ("lsc", "usual"), ("lsc", "newcomer-stays"), ("lru", "usual"), ("lru", "put-is-no-access"),
    )  # fmt: skip


def exp_lowest(results: RunResults) -> str:
    return _told(
        results,
        "Schemes that weigh size drop large newcomers unread and are far below, and so is LRU where a PUT is no "
        "access. An infinite time to live where growth is unknown or 0 matters only where that happens: not after the "
        "first minutes, since hardly a result is consumed by everybody while it is in the cache. Where fetched results "
        "enter, they turn the cache over within a second or two, in which EXP drops newcomers of interests with short "
        "lives before anybody has read them.",
        ("exp", "usual"), ("exp", "lives-without-end"), ("exp", "fetched-results-enter"), ("lru", "put-is-no-access"),
    )  # fmt: skip
