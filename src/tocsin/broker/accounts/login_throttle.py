"""Wrong passwords: how many may be tried for one user."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tocsin.wire.errors import LimitError

REMEMBERED: Final = 50_000
"""Users that somebody failed at lately, and addresses that users logged in from. Passwords are dear to try: to have one
forgotten by trying so many others is slower than to wait."""
_HOUR_US: Final = 3_600_000_000

User = tuple[str, str]


class LoginThrottle:
    """For each user `burst` wrong passwords at once, and `per_hour` on the long run.

    Counted for names that nobody has, too, so that nobody learns from it which there are. An address that the user has
    logged in from lately is counted by itself: who guesses elsewhere does not lock the user out there.
    """

    def __init__(self, burst: int, per_hour: int, *, remembered: int = REMEMBERED) -> None:
        self._burst = float(burst)
        self._per_us = per_hour / _HOUR_US
        self._remembered = remembered
        # How many are left, and as of when. Who is not here has all.
        self._left: OrderedDict[tuple[User, str | None], tuple[float, int]] = OrderedDict()
        self._homes: OrderedDict[tuple[User, str | None], None] = OrderedDict()

    @contextmanager
    def one(self, user: User, origin: str | None, now_us: int) -> Iterator[LoginAttempt]:
        """A password that is being tried; LimitError (429) where no more may be. It counts from now on, so that many at
        once are not more than one after the other, and no longer where it was right, or not tried after all."""
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
        if (found := self._left.get(key)) is not None:
            left, at_us = found
            if left + 1.0 >= self._burst:
                del self._left[key]
            else:
                self._left[key] = (left + 1.0, at_us)


class LoginAttempt:
    """What became of it; neither where it was not tried."""

    __slots__ = ("right", "wrong")

    def __init__(self) -> None:
        self.right = self.wrong = False

    def was(self, right: bool) -> None:
        self.right, self.wrong = right, not right
