"""Login throttle: limits the wrong passwords that may be tried for one user."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tocsin.wire.errors import LimitError

REMEMBERED: Final = 50_000
"""The number of users with recent failures, and of addresses with recent logins, that are remembered. An attacker gains
nothing by pushing an entry out with failures of other users: password checks are slow, so waiting is faster."""
_HOUR_US: Final = 3_600_000_000

User = tuple[str, str]


class LoginThrottle:
    """A token bucket per user: a burst of `burst` wrong passwords, and `per_hour` in the long run.

    It counts unknown users, too, so that it reveals no names. An address from which the user has logged in lately has a
    bucket of its own: an attacker elsewhere cannot lock the user out there.
    """

    def __init__(self, burst: int, per_hour: int, *, remembered: int = REMEMBERED) -> None:
        self._burst = float(burst)
        self._per_us = per_hour / _HOUR_US
        self._remembered = remembered
        # The remaining tries and the time of that count. A user without an entry has a full bucket.
        self._left: OrderedDict[tuple[User, str | None], tuple[float, int]] = OrderedDict()
        self._homes: OrderedDict[tuple[User, str | None], None] = OrderedDict()

    @contextmanager
    def one(self, user: User, origin: str | None, now_us: int) -> Iterator[LoginAttempt]:
        """Counts one try of a password; raises LimitError (429) if none is left. The try counts from the start, so that
        parallel tries gain nothing. It is given back if the password was right, or was not checked after all."""
        key = (user, origin if (user, origin) in self._homes else None)
        self._take(key, now_us)
        attempt = LoginAttempt()
        try:
            yield attempt
        finally:
            if not attempt.wrong:
                self._give_back(key)
            if attempt.right:
                self._homes[user, origin] = None
                self._homes.move_to_end((user, origin))
                if len(self._homes) > self._remembered:
                    self._homes.popitem(last=False)

    def _take(self, key: tuple[User, str | None], now_us: int) -> None:
        left, at_us = self._left.get(key, (self._burst, now_us))
        left = min(self._burst, left + max(0, now_us - at_us) * self._per_us)
        if left < 1.0:
            raise LimitError(
                "too many wrong passwords were given for this user", status=429, hint="try again later", retry=True,
                retry_after_s=(1.0 - left) / self._per_us / 1e6,
            )  # fmt: skip
        self._left[key] = (left - 1.0, now_us)
        self._left.move_to_end(key)
        if len(self._left) > self._remembered:
            self._left.popitem(last=False)

    def _give_back(self, key: tuple[User, str | None]) -> None:
        if (entry := self._left.get(key)) is not None:
            left, at_us = entry
            if left + 1.0 >= self._burst:
                del self._left[key]
            else:
                self._left[key] = (left + 1.0, at_us)


class LoginAttempt:
    """The outcome of a try; both are False if the password was not checked."""

    __slots__ = ("right", "wrong")

    def __init__(self) -> None:
        self.right = self.wrong = False

    def was(self, right: bool) -> None:
        self.right, self.wrong = right, not right
