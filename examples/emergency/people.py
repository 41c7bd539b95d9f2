"""Simulated people: they walk about, tell where they are, hear what concerns them, go offline and return.

Each is a client of the broker, as anybody's program would be, and writes down what it did and heard for the auditor.
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
    """`steady`: stands still and never leaves."""

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
        """To all that one wishes to hear of, and say where one is."""
        async with Client(self._url, token=self._token) as client:
            for channel, parameters in self.wishes:
                asked_s = time()
                made = await client.subscribe(f"emergency.{channel}", parameters)
                self._history.subscribed(self.name, made, asked_s, time())
            await self._tell_place(client)
            self._keep_token(client)

    async def live(self, stop: asyncio.Event) -> None:
        """Come and go; once `stop` is set, stay, and hear what is left to hear."""
        while True:
            # Not all at the same moment; and where nobody was at the door, again a little later.
            await asyncio.sleep(self._rng.uniform(0, 2))
            with suppress(UnavailableError):
                await self._be_there(stop)
            await passed(stop, self._rng.uniform(*_AWAY_S))

    async def _be_there(self, stop: asyncio.Event) -> None:
        # A phone keeps its token, and comes back without a password.
        async with Client(self._url, token=self._token) as client, asyncio.TaskGroup() as tasks:
            leaves_s = time() + (math.inf if self._steady else self._rng.uniform(*_STAYS_S))
            self.online_since_s = time()
            listening = tasks.create_task(self._listen(client))
            try:
                while time() < leaves_s and not stop.is_set():
                    self._walk()
                    await self._tell_place(client)
                    await passed(stop, min(self._rng.uniform(*_PLACE_EVERY_S), leaves_s - time()))
                if stop.is_set():
                    await listening
            finally:
                listening.cancel()
                self.online_since_s = math.inf
                self._keep_token(client)

    async def _listen(self, client: Client) -> None:
        async for told in client.results():
            self._history.told(self.name, told, time(), self.online_since_s)

    def _walk(self) -> None:
        if not self._steady:
            if self.here == self._goal:
                self._goal = data.near(self._rng, data.WELLINGTON, _TOWN_M)
            self.here = data.towards(self.here, self._goal, self._walks_m)

    async def _tell_place(self, client: Client) -> None:
        location = UserLocation(self.name, self.here, datetime.now(UTC))
        sent = self._history.place(self.name, self.here, location.timestamp.timestamp(), time())
        await publish(client, "LocationFeed", [data.location_record(location)])
        sent.visible_s = time()

    def _keep_token(self, client: Client) -> None:
        if client.who is not None:
            self._token = client.who.token


def townspeople(url: str, count: int, history: History, rng: Random) -> list[Person]:
    """Everybody hears of what happens near them at once, and of one kind of thing at home; some of more."""
    homes = [data.near(rng, data.WELLINGTON, _TOWN_M) for _ in range(12)]
    found = []
    for i, one in enumerate(data.locations(rng, count, at=datetime.now(UTC))):
        home, kind = rng.choice(homes), rng.choice(data.EMERGENCY_TYPES)
        wishes: list[Wish] = [
            ("NewEmergenciesNearUser", [one.user_name]),
            ("NewEmergenciesOfTypeAtWithShelters", [kind, home.latitude, home.longitude]),
        ]
        if i % 3 == 0:
            wishes.append(("EmergenciesNearUser", [one.user_name]))
        if i % 4 == 0:
            wishes.append(("NewEmergenciesOfType", [kind]))
        found.append(Person(url, one.user_name, one.place, wishes, history))
    return found


def lighthouse(url: str, history: History) -> Person:
    """Somebody far out at sea who subscribes to every channel, is always there, and hears of every flare.

    A flare behind some reports says that the channel through which it was heard has matched them, too.
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
    """Reports emergencies, and fires a flare behind each few."""

    def __init__(self, url: str, history: History, rng: Random) -> None:
        self._url = url
        self._history = history
        self._rng = rng

    async def report(self, stop: asyncio.Event) -> None:
        """About one a second, until it is stopped."""
        async with Client(self._url, "agency", PASSWORD, register=True) as client:
            while not stop.is_set():
                await self._send(client, self._rng.choice((1, 1, 2)))
                await passed(stop, _REPORTS_EVERY_S)

    async def fire(self) -> None:
        """A flare."""
        async with Client(self._url, "agency", PASSWORD, register=True) as client:
            await self._send(client, 0)

    async def _send(self, client: Client, count: int) -> None:
        now = datetime.now(UTC)
        reports = [data.report(self._rng, at=now, within_m=_TOWN_M) for _ in range(count)]
        flare = Report(FLARE, 1, LIGHTHOUSE, 1_000.0, now, "All is well")
        sent = [self._history.report(one, time()) for one in (*reports, flare)]
        await publish(client, "ReportFeed", [data.report_record(one.report, number=one.number) for one in sent])
        for one in sent:
            one.visible_s = time()


async def publish(client: Client, feed: str, records: Iterable[dict[str, Any]]) -> None:
    """Returns when queries see the records, however long the broker is away; one key, so they are taken once."""
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
    """Returns when the event is set, at the latest after so long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await event.wait()
