"""Simulates one benchmark under one admission policy.

Records are published as a Poisson process. The broker, one record at a time, matches each with its consumers and asks
the policy. An admitted record is appended to the log of every consumer that wants it; the others are written to a
database. Consumers poll. A consumer that finds a record missing requests it; the database, one request at a time, reads
it, and a later poll returns it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tocsin.lab.engine.engine import SimulationEngine
from tocsin.lab.engine.network import LinkSettings, SimulatedLink
from tocsin.lab.experiments.declaration import Run
from tocsin.rules.caching.admission import Admission, admission


def model(run: Run) -> Mapping[str, float]:
    benchmark = _Benchmark(run)
    benchmark.engine.run()
    return benchmark.metrics()


def _policy_of(run: Run) -> Admission:
    """Returns the live rule with the cell's tuning."""
    name = run.text("policy")
    tuned_policies = {
        "threshold": f"threshold({run.number('rise')}, {run.number('fall')})",
        "mean": f"mean({run.whole('batch')})",
        "buffer": f"buffer({run.number('last')}, {run.number('before')})",
    }
    return admission(tuned_policies.get(name, name), learns_first=bool(run.values["learns_first"]))


class _Benchmark:
    def __init__(self, run: Run) -> None:
        self.engine = SimulationEngine(run.seed, trace=run.trace)
        self._policy = _policy_of(run)
        self._records = run.whole("records")
        chance = self.engine.streams.of("records")
        # Of three consumers two want the same records: a record is for both of them or for the third.
        self._consumers = (1 + (chance.random(self._records) < run.number("shared"))).tolist()
        # A server is a link on which a second of service is a byte.
        self._broker, self._database = (SimulatedLink(LinkSettings(0.0, 1.0)) for _ in range(2))
        self._broker_s, self._append_s = run.number("broker_s"), run.number("append_s")
        self._write_s, self._read_s = run.number("database_write_s"), run.number("database_read_s")
        self._poll_s, every_s = run.number("poll_s"), run.number("publish_every_s")
        self._admitted = self._copies = self._deliveries = 0
        self._latency_s = self._last_s = 0.0
        moments = self.engine.streams.of("publishing").exponential(every_s, self._records).cumsum().tolist()
        self.engine.feed(((at_s, (number,)) for number, at_s in enumerate(moments)), self._publish)

    def metrics(self) -> dict[str, float]:
        hit_rate = self._admitted / self._records
        # The source's convention: the duplication of no records is 1.
        duplication = self._copies / self._admitted if self._admitted else 1.0
        return {
            "hit_rate": hit_rate,
            "duplication": duplication,
            "value": hit_rate * duplication,
            "latency_s": self._latency_s / self._deliveries,
            "throughput_per_s": self._records / self._last_s,
        }

    def _publish(self, number: int) -> None:
        now_s = self.engine.now_s
        self.engine.at(self._broker.arrival_s(now_s, self._broker_s), self._decide, number, now_s)

    def _decide(self, number: int, published_s: float) -> None:
        now_s, consumers = self.engine.now_s, self._consumers[number]
        admitted = self._policy.admits(consumers)
        self.engine.note("decided", record=number, consumers=consumers, admitted=admitted)
        if admitted:
            self._admitted += 1
            self._copies += consumers
            for copy in range(consumers):
                self._deliver(now_s + (copy + 1) * self._append_s, published_s)
            return
        stored_s = self._database.arrival_s(now_s, self._write_s)
        asked_s = max(self._next_poll_s(now_s), stored_s)
        for _ in range(consumers):
            self.engine.at(asked_s, self._read, number, published_s)

    def _read(self, number: int, published_s: float) -> None:
        read_s = self._database.arrival_s(self.engine.now_s, self._read_s)
        self.engine.note("asked", record=number, read_s=read_s)
        self._deliver(read_s + self._append_s, published_s)

    def _deliver(self, appended_s: float, published_s: float) -> None:
        received_s = self._next_poll_s(appended_s)
        self._deliveries += 1
        self._latency_s += received_s - published_s
        self._last_s = max(self._last_s, received_s)

    def _next_poll_s(self, now_s: float) -> float:
        return (math.floor(now_s / self._poll_s) + 1) * self._poll_s
