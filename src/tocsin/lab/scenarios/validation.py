"""Checks that a scenario can be played to a city: its channels and feeds exist, and its people do what is possible.

A scenario may be written by hand, and a live run takes long. So every step is checked first, and an error names the
line and the possible values.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

from tocsin.lab.scenarios import scenario as acts
from tocsin.lab.scenarios.city import CHANNELS
from tocsin.lab.scenarios.scenario import Scenario
from tocsin.wire.errors import InputError

_KINDS: Final = {channel: kinds.split() for channel, kinds, _ in CHANNELS}
_TAKES: Final = {"type": ("a type",), "place": ("metres east", "metres north"), "user": ("a subscriber",)}
# The fields that a record needs, with their types.
_FEEDS: Final[dict[str, dict[str, type | tuple[type, ...]]]] = {
    "ReportFeed": {
        "emergencyType": str, "severity": int, "east_m": (int, float), "north_m": (int, float),
        "radius_m": (int, float), "message": str,
    },
    "ShelterFeed": {"name": str, "east_m": (int, float), "north_m": (int, float), "beds": int},
}  # fmt: skip


# Some months. Channels run through the span in seconds; a typo in a time would turn that into hours.
_MOST_S: Final = 1e7


def check(scenario: Scenario, path: Path) -> None:
    """Checks all steps. `InputError` names the first line of the file that cannot be played, and how to repair it."""
    online: set[str] = set()
    subscriptions: set[tuple[str, str, tuple[str | float, ...]]] = set()
    for number, step in enumerate(scenario.steps, 2):
        try:
            _refuse(step.at_s > _MOST_S, f"at_s: must be at most {_MOST_S:g}, got {step.at_s:g}", _LINES)
            match step.act:
                case acts.LogInStep(name):
                    _refuse(name in online, f"{name} is logged in already", "log it out before")
                    online.add(name)
                case acts.LogOutStep(name):
                    _refuse(name not in online, f"{name} is not logged in", "log it in before")
                    online.discard(name)
                case acts.SubscribeStep(name, channel, parameters):
                    _channel(channel, parameters)
                    subscription = name, channel, parameters
                    _refuse(
                        subscription in subscriptions,
                        f"{name} subscribes to this already",
                        "leave one of both steps out",
                    )
                    subscriptions.add(subscription)
                case acts.UnsubscribeStep(name, channel, parameters):
                    subscription = name, channel, parameters
                    _refuse(
                        subscription not in subscriptions,
                        f"{name} does not subscribe to this",
                        "subscribe to it before",
                    )
                    subscriptions.discard(subscription)
                case acts.PublishStep(feed, record):
                    _record(feed, record)
                case _:
                    pass
        except InputError as error:
            raise InputError(f"{path}, line {number}: {error.message}", hint=error.hint) from None


def _refuse(wrong: bool, why: str, hint: str) -> None:
    if wrong:
        raise InputError(why, hint=hint)


def _channel(channel: str, parameters: tuple[str | float, ...]) -> None:
    kinds = _KINDS.get(channel)
    if kinds is None:
        raise InputError(f"no channel {channel}", hint=f"a city has: {', '.join(_KINDS)}")
    parameter_words = [word for kind in kinds for word in _TAKES[kind]]
    texts = [not word.startswith("metres") for word in parameter_words]
    _refuse(
        [isinstance(parameter, str) for parameter in parameters] != texts,
        f"{channel} takes {', '.join(parameter_words)}",
        _LINES,
    )


def _record(feed: str, record: Any) -> None:
    fields = _FEEDS.get(feed)
    if fields is None:
        raise InputError(f"no feed {feed}", hint=f"a city has: {', '.join(_FEEDS)}")
    for name, kind in fields.items():
        value = record.get(name)
        fits = isinstance(value, kind) and not isinstance(value, bool)
        # NaN and infinity are not places.
        fits = fits and (isinstance(value, str) or abs(value) <= sys.float_info.max)
        _refuse(not fits, f"a record of {feed} needs {name}, got {value!r}", f"it has: {', '.join(fields)}")


_LINES: Final = "docs/lab.md shows a scenario line by line"
