"""Makes the clock that a broker deletes by, and logs when it stands still.

Ended sessions and former subscriptions are forgotten by age. A clock that is set ahead by mistake must not end them.
"""

from __future__ import annotations

import structlog

from tocsin.clock import AgeClock

_log = structlog.get_logger()


def make_age_clock() -> AgeClock:
    return AgeClock(on_change=_log_change)


def _log_change(is_suspect: bool) -> None:
    if is_suspect:
        hint = "set the clock right; or, if it is right, restart the broker"
        _log.error("the wall clock was set by more than an hour: nothing is deleted by age", hint=hint)
    else:
        _log.warning("the wall clock is right again; what is too old is deleted again")
