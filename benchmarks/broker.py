"""Measures the CPU of the broker's core per result and per subscriber, compared with a set of subscribers per result.

python -m benchmarks.broker
"""

from __future__ import annotations

from typing import Final

from benchmarks import cache
from benchmarks.baselines.caching import PlainCaches
from benchmarks.harness import Bench, compare
from tocsin.broker.core.actions import Deliver, NotifyAvailable
from tocsin.broker.core.broker import Broker
from tocsin.broker.core.events import (
    BackendSubscribed,
    Mode,
    ResultArrived,
    ResultsAcknowledged,
    ResultsRequested,
    SubscribeRequested,
    SubscriberLoggedIn,
)
from tocsin.broker.core.settings import CoreSettings
from tocsin.rules.model.cursors import START, Cursor

INTERESTS: Final = 200
ARRIVALS: Final = 2_000
ROUNDS: Final = 5


def main() -> None:
    bench = Bench("broker")
    core(bench)
    cache.policies(bench)
    bench.finish()


class Live:
    """A broker whose subscribers are all online."""

    def __init__(self, subscribers: int, mode: Mode) -> None:
        self.broker = Broker(CoreSettings(), 0.0)
        self._number = 0
        for interest in range(INTERESTS):
            for subscriber in range(subscribers):
                self.broker.handle(SubscribeRequested((interest, subscriber), subscriber, interest, None, mode), 0.0)
            self.broker.handle(BackendSubscribed(interest, START), 0.0)
        for subscriber in range(subscribers):
            self.broker.handle(SubscriberLoggedIn(subscriber), 0.0)

    def arrive(self) -> tuple[int, Cursor, list[Deliver | NotifyAvailable]]:
        self._number += 1
        interest, cursor = self._number % INTERESTS, Cursor(1, self._number, 0)
        actions = self.broker.handle(ResultArrived(interest, cursor, 500), self._number / 100)
        return interest, cursor, [action for action in actions if isinstance(action, Deliver | NotifyAvailable)]

    def acknowledged_as_one(self) -> None:
        for _ in range(ARRIVALS):
            interest, cursor, (delivered,) = self.arrive()
            self.broker.handle(ResultsAcknowledged(interest, cursor, delivered.audience), self._number / 100)

    def acknowledged_in_batches(self) -> None:
        for _ in range(ARRIVALS):
            interest, cursor, (delivered,) = self.arrive()
            self.broker.handle(ResultsAcknowledged(interest, cursor, list(delivered.audience)), self._number / 100)

    def pulled(self) -> None:
        for _ in range(ARRIVALS):
            interest, cursor, (action,) = self.arrive()
            self.broker.handle(ResultsRequested(interest, action.audience), self._number / 100)
            self.broker.handle(ResultsAcknowledged(interest, cursor, action.audience), self._number / 100)


class Plain:
    def __init__(self, subscribers: int) -> None:
        self._caches = PlainCaches(1 << 30)
        self._number = 0
        for interest in range(INTERESTS):
            self._caches.open(interest, range(subscribers))

    def acknowledged(self) -> None:
        for _ in range(ARRIVALS):
            self._number += 1
            interest = self._number % INTERESTS
            for subscriber in self._caches.put(interest, self._number, 500):
                self._caches.ack(interest, subscriber, self._number)


def core(bench: Bench) -> None:
    for subscribers in (1, 100):
        inline, notify = Live(subscribers, Mode.INLINE), Live(subscribers, Mode.NOTIFY)
        for found in compare(
            Plain(subscribers).acknowledged,
            {
                "acknowledged as one": inline.acknowledged_as_one,
                "acknowledged in batches": inline.acknowledged_in_batches,
                "notified, pulled, acknowledged": notify.pulled,
            },
            rounds=ROUNDS,
            operations=ARRIVALS,
        ):
            what = f"a result for {subscribers}, {found.name}"
            # One who acknowledges alone costs the core an event's share; many who do it together cost it nothing more.
            bar = 1.5 if subscribers == 100 and found.name == "acknowledged as one" else None
            bench.compared(what, found, bar=bar, baseline="a set per result")
            bench.reached(f"{what}: deliveries", subscribers / found.seconds, bar=None, unit="/s")


if __name__ == "__main__":
    main()
