"""A look at all caches, some at a time: how fast each grows, and how long its results live from now on.

A hundred thousand caches take the better part of a second, for which nobody should have to wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tocsin.rules.caching.expiry import WEIGHTS, time_to_live_s
from tocsin.rules.caching.result_cache import ResultCache
from tocsin.rules.caching.settings import CachingSettings

AT_ONCE: Final = 2_000
"""So many caches are looked at in one piece from beginning to end."""
PAUSE_S: Final = 0.02
"""Where there are more, the pieces are so far apart."""


class TtlRefresh:
    """First it looks at every cache, to know the sum of all weights; then each gets its time to live.

    Caches that come meanwhile are not in it; those that go are, and nobody sees them any more.
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
        """A piece of it. Those that have another time to live now."""
        steps = 2 * AT_ONCE
        looked = len(self._weights)
        if looked < len(self._caches):
            weight = WEIGHTS[self._settings.weights]
            some = self._caches[looked : looked + steps]
            for cache in some:
                cache.rates.look(now_s, self._settings.rate_window_s)
                self._weights.append(weight(cache))
            if len(self._weights) < len(self._caches):
                return ()
            self._total = sum(self._weights)
            steps -= len(some)
        begin, self._done = self._done, min(len(self._caches), self._done + steps)
        changed = self._caches[begin : self._done]
        chosen = self._settings
        for cache, mine in zip(changed, self._weights[begin : self._done], strict=True):
            cache.ttl_s = time_to_live_s(
                cache, mine, self._total,
                budget_bytes=chosen.budget_bytes, first_s=chosen.ttl_first_s, cap_s=chosen.ttl_cap_s,
            )  # fmt: skip
        return changed
