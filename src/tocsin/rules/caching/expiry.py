"""Expiry policies: each decides when results leave although there is room. `TtlSchedule` says when times to live are
computed again, and `_time_to_live_s` is their formula.

Rates change slowly and there may be many caches, so times to live are recomputed from time to time and in pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tocsin.rules.caching.result_cache import ResultCache

if TYPE_CHECKING:
    from tocsin.rules.caching.settings import CachingSettings

_AT_ONCE: Final = 2_000
"""The refresh of up to this many caches happens in one piece."""
_PAUSE_S: Final = 0.02
"""The pause between two pieces."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """`expires`: results leave after their cache's time to live; the budget holds in expectation, the ceiling always.
    Otherwise they leave only when they are consumed or evicted, and the budget holds at every moment.
    """

    expires: bool

    def limit_bytes(self, budget_bytes: int, ceiling_bytes: int) -> int:
        """How many bytes may be resident at any moment."""
        return ceiling_bytes if self.expires else budget_bytes


EXPIRY: Final[dict[str, Expiry]] = {"ttl": Expiry(True), "never": Expiry(False)}


def _by_subscribers(cache: ResultCache) -> float:
    return float(cache.subscribers)


def _equally(cache: ResultCache) -> float:  # noqa: ARG001
    return 1.0


# ω_i before they are scaled to sum to 1.
WEIGHTS: Final[dict[str, Callable[[ResultCache], float]]] = {"subscribers": _by_subscribers, "equal": _equally}


class TtlSchedule:
    """Recomputes the times to live of all caches every `ttl_every_s`. Many caches take several pieces, with a pause
    between them."""

    def __init__(self, settings: CachingSettings, now_s: float) -> None:
        self.due_s = now_s + settings.ttl_every_s
        self._refresh: TtlRefresh | None = None

    @property
    def is_under_way(self) -> bool:
        return self._refresh is not None

    def recompute_some(
        self, caches: Iterable[ResultCache], settings: CachingSettings, now_s: float
    ) -> Sequence[ResultCache]:
        """Does the next piece. Returns the caches whose time to live it has set."""
        if self._refresh is None:
            self._refresh = TtlRefresh(caches, settings)
        changed = self._refresh.go_on(now_s)
        if self._refresh.has_ended:
            self._refresh = None
        self.due_s = now_s + (_PAUSE_S if self.is_under_way else settings.ttl_every_s)
        return changed

    def restart(self, settings: CachingSettings, now_s: float) -> None:
        """Forgets the pieces that were done, because the settings have changed."""
        self._refresh = None
        self.due_s = min(self.due_s, now_s + settings.ttl_every_s)


class TtlRefresh:
    """Recomputes times to live in two passes: the first measures the growth of every cache (unless `measures` is
    False) and sums the weights, the second sets the times to live.

    It works in pieces, because a pass over a hundred thousand caches takes most of a second: too long to block the
    broker.
    A cache that opens during the refresh waits for the next refresh. A cache that closes stays in the list, harmlessly.
    """

    def __init__(self, caches: Iterable[ResultCache], settings: CachingSettings, *, measures: bool = True) -> None:
        self._caches = list(caches)
        self._settings = settings
        self._measures = measures
        self._weights: list[float] = []
        self._total = 0.0
        self._done = 0

    @property
    def has_ended(self) -> bool:
        return self._done == len(self._caches)

    def go_on(self, now_s: float) -> Sequence[ResultCache]:
        """Does one piece. Returns the caches whose time to live it has set."""
        steps = 2 * _AT_ONCE
        measured = len(self._weights)
        if measured < len(self._caches):
            weight = WEIGHTS[self._settings.weights]
            piece = self._caches[measured : measured + steps]
            for cache in piece:
                if self._measures:
                    cache.rates.update(now_s, self._settings.rate_window_s)
                self._weights.append(weight(cache))
            if len(self._weights) < len(self._caches):
                return ()
            self._total = sum(self._weights)
            steps -= len(piece)
        begin, self._done = self._done, min(len(self._caches), self._done + steps)
        changed = self._caches[begin : self._done]
        for cache, cache_weight in zip(changed, self._weights[begin : self._done], strict=True):
            cache.ttl_s = _time_to_live_s(cache, cache_weight, self._total, self._settings)
        return changed


def _time_to_live_s(cache: ResultCache, mine: float, total: float, settings: CachingSettings) -> float:
    """T_i = ω_i · B / ρ_i, so that Σ ρ_i · T_i = B over all caches that grow and are not capped. ω_i is this cache's
    share of the total weight.

    A cache that does not grow would keep its results forever, so it gets the cap. A cache without an estimate yet gets
    `ttl_first_s`.
    """
    growth = cache.rates.growth_bytes_s
    if not cache.rates.estimated:
        return min(settings.ttl_first_s, settings.ttl_cap_s)
    if growth <= 0 or total <= 0:
        return settings.ttl_cap_s
    return min(settings.ttl_cap_s, mine / total * settings.budget_bytes / growth)
