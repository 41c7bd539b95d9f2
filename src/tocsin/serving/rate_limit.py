"""Rate limits: token buckets with a burst and a sustained rate.

A bucket takes the time as an argument and has no timer: it is refilled when it is next used. So a client that is away
causes no work, and tests need no clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from tocsin.wire.errors import LimitError


class TokenBucket:
    """A token bucket: a request takes a token, and tokens are refilled at a constant rate."""

    __slots__ = ("_at_s", "_burst", "_left", "_per_s")

    def __init__(self, per_s: float, burst: float, now_s: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._left = burst
        self._at_s = now_s

    def take(self, now_s: float) -> float:
        """Takes a token, and returns 0 or the seconds to wait; the token is taken in either case, so that the client
        may continue after the wait."""
        self._refill(now_s)
        self._left -= 1.0
        return max(0.0, -self._left / self._per_s)

    def try_take(self, now_s: float, tokens: float = 1.0) -> float:
        """Takes the tokens and returns 0, or takes nothing and returns the missing seconds. A request for more than the
        burst needs a full bucket and leaves a debt."""
        self._refill(now_s)
        needed = min(tokens, self._burst)
        if self._left < needed:
            return (needed - self._left) / self._per_s
        self._left -= tokens
        return 0.0

    def give_back(self) -> bool:
        """Returns a token that was taken. Returns whether the bucket is full again."""
        self._left = min(self._burst, self._left + 1.0)
        return self._left >= self._burst

    def _refill(self, now_s: float) -> None:
        if now_s > self._at_s:  # Wall clocks can be set back.
            self._left = min(self._burst, self._left + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s


class RateLimiter:
    """A token bucket per client. The least recently used buckets are forgotten, since they are full again."""

    def __init__(
        self,
        per_s: float,
        burst: float,
        what: str = "",
        *,
        refusal: str = "",
        hint: str = "ask less often",
        most: int = 100_000,
    ) -> None:
        self._per_s = per_s
        self._burst = burst
        self._refusal = refusal or f"more than {per_s:g} {what} per second"
        self._hint = hint
        self._most = most
        self._buckets: OrderedDict[Hashable, TokenBucket] = OrderedDict()

    def check(self, who: Hashable, now_s: float, tokens: float = 1.0) -> None:
        """Raises LimitError (429) if the client is too fast, with the time of the next token."""
        bucket = self._buckets.get(who)
        if bucket is None:
            if len(self._buckets) >= self._most:
                self._buckets.popitem(last=False)
            bucket = self._buckets[who] = TokenBucket(self._per_s, self._burst, now_s)
        else:
            self._buckets.move_to_end(who)
        missing_s = bucket.try_take(now_s, tokens)
        if missing_s > 0:
            raise LimitError(self._refusal, status=429, hint=self._hint, retry=True, retry_after_s=missing_s)

    def give_back(self, who: Hashable) -> None:
        """Returns a token that `check` took from the client."""
        bucket = self._buckets.get(who)
        if bucket is not None and bucket.give_back():
            del self._buckets[who]
