"""What happened to a broker, one line of JSON per event, so that it can be lived through again under virtual time.

    {"settings":{…},"policy":"all+lsc+never"}
    {"at_s":12.5,"event":"Arrived","interest":17,"cursor":[1763200000,12,0],"size_bytes":120}
    {"at_s":60.0,"figures":{"hits":…},"resident_bytes":…}

Payloads are left out; their sizes tell everything that caching depends on. What cannot be written is lost, the broker
is not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson
import structlog

from tocsin.broker.core.broker import Broker
from tocsin.broker.core.events import (
    BrokerEvent,
    CachePoliciesChanged,
    FetchesSucceeded,
    FetchSucceeded,
    ResultArrived,
)
from tocsin.rules.caching.entries import BrokerResult

FIGURES_EVERY_S: Final = 60.0

_log = structlog.get_logger("tocsin.broker.trace")


class BrokerTrace:
    def __init__(self, path: Path, core: Broker, began_s: float) -> None:
        self._core = core
        self._began_s = began_s
        self._figures_due_s = began_s + FIGURES_EVERY_S
        _spare(path)
        self._file: Any = path.open("wb")
        self._write({"settings": dataclasses.asdict(core.settings), "policy": core.settings.caching.policy})

    def happened(self, event: BrokerEvent, now_s: float) -> None:
        """Before the core handles it: figures that are due stand before its line, for they are from before it."""
        if now_s >= self._figures_due_s:
            self._figures_due_s = now_s + FIGURES_EVERY_S
            self.figures(now_s)
        self._write({"at_s": round(now_s - self._began_s, 6), "event": type(event).__name__, **_fields(event)})

    def figures(self, now_s: float) -> None:
        caches = self._core.caches
        self._write(
            {
                "at_s": round(now_s - self._began_s, 6),
                "policy": caches.settings.policy,
                "figures": dataclasses.asdict(caches.figures),
                "resident_bytes": caches.resident_bytes,
            }
        )

    def flush(self) -> None:
        if self._file is not None:
            self._guard(self._file.flush)

    def close(self, now_s: float) -> None:
        self.figures(now_s)
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
            _log.warning("the trace ends here", error=str(error))
            self._file = None


def _fields(event: BrokerEvent) -> dict[str, Any]:
    match event:
        case ResultArrived():
            return {"interest": event.interest, "cursor": event.cursor, "size_bytes": event.size_bytes}
        case FetchSucceeded():
            results = [(one.cursor, one.size_bytes) for one in event.results]
            return {"fetch": event.fetch, "to": event.to, "results": results, "took_s": event.took_s, "gap": event.gap}
        case FetchesSucceeded():
            return {"answers": [_fields(one) for one in event.answers]}
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
    """What a broker wrote before it ended is kept under the next free name, such as events.jsonl.1."""
    if path.exists():
        number = 1
        while (other := path.with_name(f"{path.name}.{number}")).exists():
            number += 1
        path.rename(other)
