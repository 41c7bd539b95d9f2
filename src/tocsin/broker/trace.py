"""Records the events of a broker, one line of JSON each, so that they can be replayed under virtual time.

    {"settings":{…},"policy":"all+lsc+never"}
    {"at_s":12.5,"event":"ResultArrived","interest":17,"cursor":[1763200000,12,0],"size_bytes":120}
    {"at_s":60.0,"counters":{"hits":…},"resident_bytes":…}

Payloads are left out: caching depends on their sizes only. A write error ends the trace, never the broker.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson
import structlog

from tocsin.broker.core.broker import Broker
from tocsin.broker.core.events import BrokerEvent, CachePoliciesChanged, FetchesSucceeded, FetchSucceeded, ResultArrived
from tocsin.rules.caching.entries import BrokerResult

_COUNTERS_EVERY_S: Final = 60.0

_log = structlog.get_logger("tocsin.broker.trace")


class BrokerTrace:
    """Writes the trace file of a core."""

    def __init__(self, path: Path, core: Broker, began_s: float) -> None:
        self._core = core
        self._began_s = began_s
        self._counters_due_s = began_s + _COUNTERS_EVERY_S
        _spare(path)
        self._file: Any = path.open("wb")
        self._write({"settings": dataclasses.asdict(core.settings), "policy": core.settings.caching.policy})

    def record(self, event: BrokerEvent, now_s: float) -> None:
        """Call this before the core handles the event: counters that are due describe the state before it."""
        if now_s >= self._counters_due_s:
            self._counters_due_s = now_s + _COUNTERS_EVERY_S
            self._record_counters(now_s)
        self._write({"at_s": round(now_s - self._began_s, 6), "event": type(event).__name__, **_fields(event)})

    def _record_counters(self, now_s: float) -> None:
        caches = self._core.caches
        self._write(
            {
                "at_s": round(now_s - self._began_s, 6),
                "policy": caches.settings.policy,
                "counters": dataclasses.asdict(caches.counters),
                "resident_bytes": caches.resident_bytes,
            }
        )

    def flush(self) -> None:
        if self._file is not None:
            self._guard(self._file.flush)

    def close(self, now_s: float) -> None:
        self._record_counters(now_s)
        if self._file is not None:
            self._guard(self._file.close)
            self._file = None

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._file is not None:
            self._guard(lambda: self._file.write(orjson.dumps(line, default=_default) + b"\n"))

    def _guard(self, work: Any) -> None:
        try:
            work()
        except OSError as error:
            _log.warning("the trace of the broker's events cannot be written any more", error=str(error))
            self._file = None


def _fields(event: BrokerEvent) -> dict[str, Any]:
    """The event's fields without payloads."""
    match event:
        case ResultArrived():
            return {"interest": event.interest, "cursor": event.cursor, "size_bytes": event.size_bytes}
        case FetchSucceeded():
            results = [(item.cursor, item.size_bytes) for item in event.results]
            return {"fetch": event.fetch, "to": event.to, "results": results, "took_s": event.took_s, "gap": event.gap}
        case FetchesSucceeded():
            return {"answers": [_fields(item) for item in event.answers]}
        case CachePoliciesChanged():
            return {"caching": dataclasses.asdict(event.caching)}
    return {name: _plain(getattr(event, name)) for name in event.__dataclass_fields__}


def _default(value: Any) -> Any:
    if isinstance(value, tuple):  # cursors
        return tuple(value)
    raise TypeError


def _plain(value: Any) -> Any:
    if isinstance(value, BrokerResult):
        return [value.cursor, value.size_bytes]
    if isinstance(value, tuple) or value is None or isinstance(value, int | str | float):
        return value
    if hasattr(value, "value"):
        return value.value
    return list(value)


def _spare(path: Path) -> None:
    """Renames the trace of an earlier run to the next free name, such as events.jsonl.1."""
    if path.exists():
        number = 1
        while (other := path.with_name(f"{path.name}.{number}")).exists():
            number += 1
        path.rename(other)
