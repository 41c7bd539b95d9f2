"""Login throttle: limits the wrong passwords that may be tried for one user.

Checking a password is expensive for the broker and guessing is cheap, so guesses are limited before they are checked.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from tocsin.serving.rate_limit import RateLimiter

REMEMBERED: Final = 50_000
"""The number of users with recent failures, and of addresses with recent logins, that are remembered. An attacker gains
nothing by pushing an entry out with failures of other users: password checks are slow, so waiting is faster."""

User = tuple[str, str]


class LoginThrottle:
    """A token bucket per user: a burst of `burst` wrong passwords, and `per_hour` in the long run.

    It counts unknown users, too, so that it reveals no names. An address from which the user has logged in lately has a
    bucket of its own: an attacker elsewhere cannot lock the user out there.
    """

    def __init__(self, burst: int, per_hour: int, *, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        self._limiter = RateLimiter(
            per_hour / 3_600, burst, refusal="too many wrong passwords were given for this user",
            hint="try again later", most=remembered,
        )  # fmt: skip
        self._homes: OrderedDict[tuple[User, str | None], None] = OrderedDict()

    @contextmanager
    def attempt(self, user: User, origin: str | None, now_us: int) -> Iterator[LoginAttempt]:
        """Counts one try of a password; raises LimitError (429) if none is left. The try counts from the start, so that
        parallel tries gain nothing. It is given back if the password was right, or was not checked after all."""
        key = (user, origin if (user, origin) in self._homes else None)
        self._limiter.check(key, now_us / 1e6)
        attempt = LoginAttempt()
        try:
            yield attempt
        finally:
            if attempt.right is not False:
                self._limiter.give_back(key)
            if attempt.right:
                self._homes[user, origin] = None
                self._homes.move_to_end((user, origin))
                if len(self._homes) > self._remembered:
                    self._homes.popitem(last=False)


@dataclass(slots=True)
class LoginAttempt:
    """The outcome of a try; None if the password was not checked."""

    right: bool | None = None
