"""Simulated users: they move, publish their location, receive results, go offline and return.

Each is a client of the broker, and records for the auditor what it did and received.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from random import Random
from secrets import token_hex
from time import time
from typing import Any, Final

from examples.emergency import data
from examples.emergency.auditor import History
from examples.emergency.data import Place, Report, UserLocation
from tocsin.sdk import Client
from tocsin.wire.errors import TocsinError, UnavailableError

PASSWORD: Final = "a good secret"
FLARE: Final = "flare"
LIGHTHOUSE: Final = Place(-43.5, 177.0)  # so far out at sea that no zone of the town reaches it

_TOWN_M: Final = 7_000.0  # from its middle to its border
_PLACE_EVERY_S: Final = (6.0, 10.0)
_REPORTS_EVERY_S: Final = 1.0
_SPEED_M_PER_S: Final = (1.0, 15.0)  # on foot, or by car
_STAYS_S: Final = (10.0, 40.0)
_AWAY_S: Final = (3.0, 12.0)

# A channel and the values of its parameters.
Wish = tuple[str, Sequence[Any]]


class Person:
    """A user. A steady one does not move and is always online."""

    def __init__(
        self, url: str, name: str, home: Place, wishes: Sequence[Wish], history: History, *, steady: bool = False
    ) -> None:
        self.name = name
        self.online_since_s = math.inf
        self._url = url
        self.wishes = wishes
        self._history = history
        self._rng = Random(name)
        self._steady = steady
        self.here = self._goal = home
        self._walks_m = self._rng.uniform(*_SPEED_M_PER_S) * _PLACE_EVERY_S[0]
        self._token = ""

    @property
    def online(self) -> bool:
        return self.online_since_s < math.inf

    async def register(self) -> None:
        async with Client(self._url, self.name, PASSWORD, register=True) as client:
            self._keep_token(client)

    async def subscribe(self) -> None:
        """Subscribes to the wished channels, and publishes the location."""
        async with Client(self._url, token=self._token) as client:
            for channel, parameters in self.wishes:
                asked_s = time()
                subscription = await client.subscribe(f"emergency.{channel}", parameters)
                self._history.subscribed(self.name, subscription, asked_s, time())
            await self._publish_place(client)
            self._keep_token(client)

    async def live(self, stop: asyncio.Event) -> None:
        """Goes online and offline; after `stop` is set, stays online and receives what is left."""
        while True:
            # Spread the logins, and retry a little later if the broker did not answer.
            await asyncio.sleep(self._rng.uniform(0, 2))
            with suppress(UnavailableError):
                await self._stay_online(stop)
            await passed(stop, self._rng.uniform(*_AWAY_S))

    async def _stay_online(self, stop: asyncio.Event) -> None:
        # A phone keeps its token, and returns without a password.
        async with Client(self._url, token=self._token) as client, asyncio.TaskGroup() as tasks:
            leaves_s = time() + (math.inf if self._steady else self._rng.uniform(*_STAYS_S))
            self.online_since_s = time()
            listening = tasks.create_task(self._listen(client))
            try:
                while time() < leaves_s and not stop.is_set():
                    self._walk()
                    await self._publish_place(client)
                    await passed(stop, min(self._rng.uniform(*_PLACE_EVERY_S), leaves_s - time()))
                if stop.is_set():
                    await listening
            finally:
                listening.cancel()
                self.online_since_s = math.inf
                self._keep_token(client)

    async def _listen(self, client: Client) -> None:
        async for event in client.results():
            self._history.received(self.name, event, time(), self.online_since_s)

    def _walk(self) -> None:
        if not self._steady:
            if self.here == self._goal:
                self._goal = data.near(self._rng, data.WELLINGTON, _TOWN_M)
            self.here = data.towards(self.here, self._goal, self._walks_m)

    async def _publish_place(self, client: Client) -> None:
        location = UserLocation(self.name, self.here, datetime.now(UTC))
        sent = self._history.place(self.name, self.here, location.timestamp.timestamp(), time())
        await publish(client, "LocationFeed", [data.location_record(location)])
        sent.visible_s = time()

    def _keep_token(self, client: Client) -> None:
        if client.who is not None:
            self._token = client.who.token


def townspeople(url: str, count: int, history: History, rng: Random) -> list[Person]:
    """Returns users who subscribe to emergencies near them, and to one type at their home; some to more."""
    homes = [data.near(rng, data.WELLINGTON, _TOWN_M) for _ in range(12)]
    people = []
    for i, user in enumerate(data.locations(rng, count, at=datetime.now(UTC))):
        home, kind = rng.choice(homes), rng.choice(data.EMERGENCY_TYPES)
        wishes: list[Wish] = [
            ("NewEmergenciesNearUser", [user.user_name]),
            ("NewEmergenciesOfTypeAtWithShelters", [kind, home.latitude, home.longitude]),
        ]
        if i % 3 == 0:
            wishes.append(("EmergenciesNearUser", [user.user_name]))
        if i % 4 == 0:
            wishes.append(("NewEmergenciesOfType", [kind]))
        people.append(Person(url, user.user_name, user.place, wishes, history))
    return people


def lighthouse(url: str, history: History) -> Person:
    """Returns a user far out at sea who subscribes to every channel, is always online, and gets every flare.

    A flare that a channel delivered proves that the channel has matched all earlier reports, too.
    """
    place = [LIGHTHOUSE.latitude, LIGHTHOUSE.longitude]
    wishes: list[Wish] = [
        ("NewEmergenciesNearUser", ["lighthouse"]),
        ("NewEmergenciesOfTypeAtWithShelters", [FLARE, *place]),
        ("EmergenciesNearUser", ["lighthouse"]),
        ("NewEmergenciesOfType", [FLARE]),
    ]
    return Person(url, "lighthouse", LIGHTHOUSE, wishes, history, steady=True)


class Agency:
    """Reports emergencies, and sends a flare after every few."""

    def __init__(self, url: str, history: History, rng: Random) -> None:
        self._url = url
        self._history = history
        self._rng = rng

    async def report(self, stop: asyncio.Event) -> None:
        """Sends about one report per second, until it is stopped."""
        async with Client(self._url, "agency", PASSWORD, register=True) as client:
            while not stop.is_set():
                await self._send(client, self._rng.choice((1, 1, 2)))
                await passed(stop, _REPORTS_EVERY_S)

    async def fire(self) -> None:
        """Sends a flare."""
        async with Client(self._url, "agency", PASSWORD, register=True) as client:
            await self._send(client, 0)

    async def _send(self, client: Client, count: int) -> None:
        now = datetime.now(UTC)
        reports = [data.report(self._rng, at=now, within_m=_TOWN_M) for _ in range(count)]
        flare = Report(FLARE, 1, LIGHTHOUSE, 1_000.0, now, "All is well")
        sent = [self._history.report(report, time()) for report in (*reports, flare)]
        await publish(
            client, "ReportFeed", [data.report_record(report.report, number=report.number) for report in sent]
        )
        for report in sent:
            report.visible_s = time()


async def publish(client: Client, feed: str, records: Iterable[dict[str, Any]]) -> None:
    """Returns when queries see the records. Retries while the broker is away, with one key, so that they land once."""
    key = token_hex(16)
    while True:
        try:
            published = await client.publish(f"emergency.{feed}", records, key=key, visible=True)
        except UnavailableError:
            await asyncio.sleep(0.5)
            continue
        if published.rejected:
            raise TocsinError(f"{feed} refused a record: {published.rejected[0]}")
        return


async def passed(event: asyncio.Event, within_s: float) -> None:
    """Returns when the event is set, at the latest after `within_s`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await event.wait()
