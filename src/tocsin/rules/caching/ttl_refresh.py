"""Measures the growth of all caches and recomputes their times to live, in pieces.

A pass over a hundred thousand caches takes most of a second, which is too long to block the broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tocsin.rules.caching.expiry import WEIGHTS, time_to_live_s
from tocsin.rules.caching.result_cache import ResultCache
from tocsin.rules.caching.settings import CachingSettings

AT_ONCE: Final = 2_000
"""The refresh of up to this many caches happens in one piece."""
PAUSE_S: Final = 0.02
"""The pause between two pieces."""


class TtlRefresh:
    """A refresh in two passes: the first measures every cache and sums the weights, the second sets times to live.

    A cache that opens during the refresh waits for the next refresh. A cache that closes stays in the list, harmlessly.
    """

    def __init__(self, caches: Iterable[ResultCache], settings: CachingSettings) -> None:
        self._caches = list(caches)
        self._settings = settings
        self._weights: list[float] = []
        self._total = 0.0
        self._done = 0

    @property
    def ended(self) -> bool:
        return self._done == len(self._caches)

    def go_on(self, now_s: float) -> Sequence[ResultCache]:
        """Does one piece. Returns the caches whose time to live it has set."""
        steps = 2 * AT_ONCE
        measured = len(self._weights)
        if measured < len(self._caches):
            weight = WEIGHTS[self._settings.weights]
            piece = self._caches[measured : measured + steps]
            for cache in piece:
                cache.rates.look(now_s, self._settings.rate_window_s)
                self._weights.append(weight(cache))
            if len(self._weights) < len(self._caches):
                return ()
            self._total = sum(self._weights)
            steps -= len(piece)
        begin, self._done = self._done, min(len(self._caches), self._done + steps)
        changed = self._caches[begin : self._done]
        settings = self._settings
        for cache, cache_weight in zip(changed, self._weights[begin : self._done], strict=True):
            cache.ttl_s = time_to_live_s(
                cache, cache_weight, self._total,
                budget_bytes=settings.budget_bytes, first_s=settings.ttl_first_s, cap_s=settings.ttl_cap_s,
            )  # fmt: skip
        return changed
