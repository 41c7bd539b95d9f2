"""Replays the trace of a live broker: gives the same events at the same times to the same core.

`tocsin broker --trace FILE` writes the events of a broker, and from time to time the counters of its caches. The replay
gives the core the same events under virtual time, and compares hits, misses, evictions and bytes. A difference means
that the live broker did something outside of its core, or that the core is not a pure function of its events.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

from tocsin.broker.core import events as ev
from tocsin.broker.core.broker import Broker
from tocsin.broker.core.settings import CoreSettings
from tocsin.rules.caching.caches import CacheCounters
from tocsin.rules.caching.entries import BrokerResult
from tocsin.rules.caching.settings import CachingSettings
from tocsin.rules.model.cursors import Cursor
from tocsin.wire.errors import InputError

_EVENTS: Final[dict[str, type[Any]]] = {kind.__name__: kind for kind in get_args(ev.BrokerEvent)}


@dataclass(frozen=True, slots=True)
class ReplayedTrace:
    """The outcome: the number of events, of comparisons, and each difference in words."""

    events: int
    compared: int
    figures: CacheCounters
    policy: str
    differences: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether there was something to compare, and it was the same."""
        return self.compared > 0 and not self.differences


def replay_trace(path: Path) -> ReplayedTrace:
    """Replays a whole trace. `InputError` names a line that is not a broker's."""
    lines = _lines(path)
    _, header = next(lines, (0, {}))
    try:
        settings = dict(header["settings"])
        settings["caching"] = CachingSettings(**settings["caching"])
        broker = Broker(CoreSettings(**settings), 0.0)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not a trace of a broker of this version: {error}") from None
    events = compared = 0
    differences: list[str] = []
    for number, line in lines:
        try:
            at_s = float(line.pop("at_s"))
            if "counters" in line:
                compared += 1
                differences += [
                    f"{path}, line {number}, {at_s} s: {difference}" for difference in _different(broker, line)
                ]
            else:
                events += 1
                broker.handle(event_of(line), at_s)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path}, line {number}: not an event of a broker: {error}") from None
    caches = broker.caches
    return ReplayedTrace(events, compared, caches.counters, caches.settings.policy, tuple(differences))


def _different(broker: Broker, line: dict[str, Any]) -> Iterator[str]:
    """Yields the differences between the live broker's counters and those of the replay."""
    caches = broker.caches
    replayed = {**dataclasses.asdict(caches.counters), "resident_bytes": caches.resident_bytes}
    live = {**line["counters"], "resident_bytes": line["resident_bytes"]}
    if line["policy"] != caches.settings.policy:
        yield f"policy {caches.settings.policy}, live {line['policy']}"
    for name, value in live.items():
        if replayed.get(name) != value:
            yield f"{name} {replayed.get(name)}, live {value}"


def event_of(line: dict[str, Any]) -> ev.BrokerEvent:
    """Returns the event of a line without its time."""
    kind = _EVENTS[line.pop("event")]
    event: ev.BrokerEvent = kind(**_fields(line))
    return event


def _fields(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: _READ.get(name, _name)(value) for name, value in fields.items()}


def _name(value: Any) -> Any:
    """Converts lists back to tuples: JSON has no tuples."""
    return tuple(map(_name, value)) if isinstance(value, list) else value


def _cursor(value: list[int] | None) -> Cursor | None:
    return None if value is None else Cursor(*value)


def _names(value: list[Any]) -> tuple[Hashable, ...]:
    return tuple(map(_name, value))


_READ: Final[dict[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(("cursor", "since", "after", "to", "gap", "sent"), _cursor),
    "subscriptions": _names,
    "acks": lambda acks: tuple((_name(name), Cursor(*cursor)) for name, cursor in acks),
    "answers": lambda answers: tuple(ev.FetchSucceeded(**_fields(answer)) for answer in answers),
    "mode": ev.Mode,
    "results": lambda found: tuple(BrokerResult(Cursor(*cursor), size_bytes) for cursor, size_bytes in found),
    "caching": lambda fields: CachingSettings(**fields),
}


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return  # the broker was killed while it wrote the line
                value = json.loads(line)
                if not isinstance(value, dict):
                    raise InputError(f"{path}, line {number}: not an object")
                yield number, value
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path}: not lines of JSON: {error}") from None
