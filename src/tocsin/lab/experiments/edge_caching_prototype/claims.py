"""What §VI claims of the prototype, in our words, and how it is judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tocsin.lab.experiments.declaration import Claim, Judged, Value
from tocsin.lab.experiments.judging import UndecidedError, about, several
from tocsin.lab.experiments.results import MissingCellsError, Results
from tocsin.lab.experiments.statistics import Estimate, estimate

_S: Final = "sizes"
_SMALLEST_KB: Final = 100
_FAR: Final = 0.05
_ONE_FETCH: Final = "a fetch serves all who wait for it, so without a cache less is fetched than is missed"
PAPER: Final = ("lru", "lsc", "lscz", "lsd", "exp", "ttl")


def _at(policy: Value, size: Value) -> dict[str, Value]:
    return {"policy": policy, "size_kb": size}


def _sizes(results: Results) -> list[Value]:
    """Those of the paper, which begins at 100 KB; others only where there are none."""
    every = results.points(_S, "size_kb")
    return [size for size in every if float(size) >= _SMALLEST_KB] or every


def _surely(found: Sequence[Estimate], figures: str, because: str = "") -> Judged:
    """Reproduced where all are more than nothing, undecided where the errors leave it open."""
    if all(one.low > 0 for one in found):
        return Judged("reproduced", figures)
    if any(one.high < 0 for one in found):
        return Judged("not reproduced", figures, because)
    raise UndecidedError(f"the error is too large; take more replications. {figures}")


def reduces(results: Results) -> Judged:
    """Against no cache at all, at every size."""
    small = _sizes(results)[0]
    said, all_of_them = [], []
    for metric in ("latency_s", "fetch_kb"):
        saved = {
            policy: results.between(metric, ("no-cache", {"policy": "nc"}), (_S, _at(policy, small)))
            for policy in PAPER
        }
        least = min(saved, key=lambda policy: saved[policy].mean)
        none = results.mean(metric, "no-cache", policy="nc")
        said.append(f"{metric}: without {none}, at {small} KB least of all less with {least}: {saved[least]}")
        all_of_them += list(saved.values())
    return _surely(all_of_them, "; ".join(said), _ONE_FETCH)


def grows(results: Results) -> Judged:
    several(results, _S, "size_kb")
    sizes = _sizes(results)
    small, large = sizes[0], sizes[-1]
    changes = {policy: results.difference("hit_ratio", _S, _at(policy, large), _at(policy, small)) for policy in PAPER}
    others = [
        results.difference(metric, _S, _at(policy, small), _at(policy, large))
        for metric in ("latency_s", "fetch_kb")
        for policy in PAPER
    ]
    figures = ", ".join(f"{policy} {one}" for policy, one in changes.items())
    return _surely([*changes.values(), *others], f"hit ratio from {small} to {large} KB: {figures}", _ONE_FETCH)


def _gains(results: Results, metric: str, one: str, other: str) -> Mapping[Value, Estimate]:
    return {size: results.difference(metric, _S, _at(one, size), _at(other, size)) for size in _sizes(results)}


def _said(gains: Mapping[Value, Estimate]) -> str:
    return ", ".join(f"{size} KB {one}" for size, one in gains.items())


def lsc_over_lru(results: Results) -> Judged:
    gains = _gains(results, "hit_ratio", "lsc", "lru")
    try:
        strict = {
            size: results.difference(
                "hit_ratio", "choices", {"policy": "lsc", "size_kb": size}, {"policy": "lru", "size_kb": size}
            )
            for size in results.points("choices", "size_kb")
        }
    except MissingCellsError:
        strict = {}
    figures = f"lsc over lru: {_said(gains)}; where a PUT is no access: {_said(strict)}"
    full = [one for one in gains.values() if one.mean or one.half_width]
    if full and all(one.low > _FAR for one in full):
        return Judged("reproduced", figures)
    if full and not any(one.high < _FAR for one in full):
        raise UndecidedError(f"the error is too large; take more replications. {figures}")
    if any(one.low > _FAR for one in strict.values()) and not any(one.low > _FAR for one in full):
        return Judged("depends", figures, "whether a PUT is an access for LRU: only if it is not, LRU is far below")
    return Judged("not reproduced", figures, "with a PUT as an access both drop what came longest ago first, nearly")


def ttl_small(results: Results) -> Judged:
    small = _sizes(results)[0]
    said, found = [], {}
    for sweep in (_S, "long-lives"):
        gains = {
            other: results.between("hit_ratio", (sweep, _at("ttl", small)), (_S, _at(other, small)))
            for other in ("lru", "lsc")
        }
        found[sweep] = gains
        lives = "ten minutes" if sweep == _S else "an hour"
        said.append(f"lives of {lives} at most: over " + ", ".join(f"{name} {one}" for name, one in gains.items()))
    figures = f"at {small} KB, ttl " + "; ".join(said)
    short, long = (list(found[sweep].values()) for sweep in (_S, "long-lives"))
    if any(one.high < 0 for one in short) and all(one.low > 0 for one in long):
        return Judged(
            "depends", figures, "the longest time to live: what few results there are expire with room to spare"
        )
    why = (
        "a city's emergencies come in bursts: times to live that are computed from the last minutes hold back room for "
        "interests that find nothing any more, and let results expire with room to spare"
    )
    return _surely(short if all(one.low > 0 for one in short) else long, figures, why)


def hundred(results: Results) -> Judged:
    """At 100 KB: are more than half of the results hits, and is latency at most half of that without a cache?"""
    size = next((one for one in results.points(_S, "size_kb") if float(one) == _SMALLEST_KB), None)
    if size is None:
        raise MissingCellsError(f"{_S}: size_kb = {_SMALLEST_KB}")
    bare = {row.cell.seed: row.metrics["latency_s"] for row in results.select("no-cache", {"policy": "nc"})}
    told = {policy: _halves(results, policy, size, bare) for policy in PAPER}
    holds = {policy: one for policy, (one, _) in told.items()}
    said = [f"{policy}: {words}{_from(results, policy, bare)}" for policy, (_, words) in told.items()]
    figures = f"at {size} KB, without a cache {estimate(list(bare.values()))} s; " + "; ".join(said)
    good, bad, unsure = ([name for name, one in holds.items() if one is wanted] for wanted in (True, False, None))
    if len(good) == len(PAPER):
        return Judged("reproduced", figures)
    if good and bad:
        return Judged("depends", figures, f"the policy: it holds for {', '.join(good)}, and not for {', '.join(bad)}")
    if unsure:
        raise UndecidedError(f"the error is too large for {', '.join(unsure)}; take more replications. {figures}")
    why = "how much of the hour 100 KB hold depends on what the channels find, which the paper does not say"
    return Judged("not reproduced", figures, why)


def _halves(results: Results, policy: str, size: Value, bare: Mapping[int, float]) -> tuple[bool | None, str]:
    """Whether more than half are hits and latency is at most half, or nobody can tell; with the figures."""
    rows = results.select(_S, _at(policy, size))
    hit = estimate([row.metrics["hit_ratio"] for row in rows])
    share = estimate([row.metrics["latency_s"] / bare[row.cell.seed] for row in rows if row.cell.seed in bare])
    sure, never = hit.low > 0.5 and share.high <= 0.5, hit.high <= 0.5 or share.low > 0.5
    return True if sure else False if never else None, f"hits {hit}, latency {share} of that without a cache"


def _from(results: Results, policy: str, bare: Mapping[int, float]) -> str:
    """From which size on both surely hold, where the smallest does not do."""
    first = next((size for size in _sizes(results) if _halves(results, policy, size, bare)[0]), None)
    if first is None:
        return " (at no size both)"
    return "" if float(first) == _SMALLEST_KB else f" (both from {first} KB on)"


def setting(results: Results) -> Judged:
    interests = results.mean("interests", "no-cache", policy="nc")
    volume = results.mean("vol_kb", "no-cache", policy="nc")
    got = results.mean("results", "no-cache", policy="nc")
    return Judged(
        "reproduced" if about(interests, 800, within=100) else "not reproduced",
        f"{interests} interests, {volume} KB found for them, {got} results for subscribers",
    )


CLAIMS: Final = (
    Claim(
        "setting",
        "About 3,500 subscriptions of 400 subscribers are merged into about 800 (a check of our set-up, which was made "
        "so; no finding)",
        "§VI-A",
        setting,
    ),
    Claim("reduces", "A cache reduces latency and the bytes retrieved from the cluster", "Fig. 7", reduces),
    Claim("grows", "With the cache size hit ratios grow, latency and fetches fall, in all schemes", "Fig. 7", grows),
    Claim("lsc-over-lru", "LSC has a far higher hit ratio than LRU", "Fig. 7", lsc_over_lru),
    Claim("ttl-small", "At the smallest size TTL does slightly better than LRU and LSC", "Fig. 7", ttl_small),
    Claim("hundred", "100 KB already make half of the results hits and halve the latency", "Fig. 7", hundred),
)
