"""Simulates links with latency and a bandwidth that concurrent messages share.

A link is a queue with one server, so the time of arrival follows from the messages before it and needs no events on the
way. The experiment `queues` compares it with theory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tocsin.lab.engine.engine import Callback, SimulationEngine


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """`latency_s` is one way. With `queueing`, messages wait for each other; without, they do not share bandwidth."""

    latency_s: float
    bandwidth_bytes_per_s: float = math.inf
    queueing: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.latency_s < math.inf:
            raise ValueError(f"latency_s: must be 0 or more, got {self.latency_s}")
        if not self.bandwidth_bytes_per_s > 0:
            raise ValueError(f"bandwidth_bytes_per_s: must be > 0, got {self.bandwidth_bytes_per_s}")


class SimulatedLink:
    """One direction of a connection: first in, first out, one transfer at a time, then the latency."""

    __slots__ = ("_free_at_s", "_settings", "sent_bytes", "waited_s")

    def __init__(self, settings: LinkSettings) -> None:
        self._settings = settings
        self._free_at_s = 0.0
        self.sent_bytes = 0.0
        self.waited_s = 0.0

    def arrival_s(self, now_s: float, size_bytes: float) -> float:
        """Returns when a message that is sent now arrives. Messages must be sent in order of time."""
        transfer_s = size_bytes / self._settings.bandwidth_bytes_per_s
        begin_s = max(now_s, self._free_at_s) if self._settings.queueing else now_s
        self._free_at_s = begin_s + transfer_s
        self.waited_s += begin_s - now_s
        self.sent_bytes += size_bytes
        return begin_s + transfer_s + self._settings.latency_s


class Network:
    """The links between named places; the two directions are independent."""

    def __init__(self, engine: SimulationEngine, links: Callable[[str, str], LinkSettings]) -> None:
        self._engine = engine
        self._settings = links
        self._links: dict[tuple[str, str], SimulatedLink] = {}

    def link(self, source: str, target: str) -> SimulatedLink:
        link = self._links.get((source, target))
        if link is None:
            link = self._links[source, target] = SimulatedLink(self._settings(source, target))
        return link

    def send(self, source: str, target: str, size_bytes: float, deliver: Callback, *arguments: object) -> float:
        """Schedules the delivery of a message, and returns its time of arrival."""
        arrival_s = self.link(source, target).arrival_s(self._engine.now_s, size_bytes)
        self._engine.at(arrival_s, deliver, *arguments)
        return arrival_s

    def bytes_by_link(self) -> Mapping[tuple[str, str], float]:
        return {ends: link.sent_bytes for ends, link in self._links.items()}
