"""Channels in the forms of the original language, fed through feeds of the same: who is told of what.

They are executed for an instant of long ago, around which the reports were made: their own ticks, which come as they
are due, find nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.support.channels_in_process import ChannelDataverse
from tests.support.feeds_in_process import free_port, send
from tests.support.in_process_cluster import LocalCluster
from tests.support.literals import literal
from tests.support.waiting import wait_until
from tocsin.rules.model.values import Circle, Point

HERE = Path(__file__).parents[3] / "support"
SCRIPT = "".join((HERE / f"original_forms{part}.sql").read_text() for part in ("", "_channels", "_feeds"))
TICK = datetime(2096, 2, 29, 23, 59, 50, 250_000, tzinfo=UTC)
NEXT = TICK + timedelta(seconds=10)
BROKER = 'create broker HarbourBroker at "http://127.0.0.1:1/notifications"'


@dataclass(frozen=True)
class Report:
    message: str
    type: str
    age_s: float
    x: float

    def touches(self, x: float, y: float) -> bool:
        return math.dist((self.x, 0.0), (x, y)) <= 2.0

    def adm(self) -> bytes:
        record = {
            "grade": 3, "waters": Circle(Point(self.x, 0.0), 2.0), "delay": 0.5,
            "issuedAt": TICK - timedelta(seconds=self.age_s), "hours": 600.0, "wording": self.message,
            "hazard": self.type, "issuer": "the coast guard",
        }  # fmt: skip
        return literal(record).encode() + b"\n"


REPORTS = [
    Report(f"{kind} {age:g}s at {x:g}", kind, age, x)
    for kind in ("squall", "fog")
    for age in (-5.0, 0.0, 9.999, 10.0, 19.999, 20.0, 29.999, 30.0, 3_600.0)
    for x in (0.0, 10.0)
]
# (name, x, y, age): u1 in the zone at 0, u2 in the one at 10, u3 on the rim of the zone at 0, u4 in none, u5 too long
# ago, u6 was seen twice, once in each zone.
USERS = [
    ("u1", 1.0, 0.0, 1.0), ("u2", 10.0, 1.0, 9.999), ("u3", -2.0, 0.0, 0.0), ("u4", 5.0, 5.0, 0.0),
    ("u5", 1.0, 0.0, 10.0), ("u6", 0.5, 0.5, 1.0), ("u6", 10.5, 0.5, 2.0),
]  # fmt: skip
PLACES = [(0.0, 0.0), (2.0, 0.0), (11.5, 1.0), (5.0, 0.0)]


def user_adm(name: str, x: float, y: float, age_s: float) -> bytes:
    at = TICK - timedelta(seconds=age_s)
    record = {"east": x, "north": y, "vessel": name, "delay": 0.0, "seenAt": at}
    return literal(record).encode() + b"\n"


@pytest.fixture(scope="module")
def harbour(cluster: LocalCluster) -> Iterator[ChannelDataverse]:
    """A dataverse in which the script ran and warnings and vessels came through its sockets."""
    name = f"harbour{uuid4().hex}"
    cluster.run(f"CREATE DATAVERSE {name}")
    place = ChannelDataverse(cluster, name)
    ports: dict[str, int] = {}

    def here(found: re.Match[str]) -> str:
        ports[found[1]] = free_port()
        return f"127.0.0.1:{ports[found[1]]}"

    place.run(re.sub(r"harbour\.example:(\d+)", here, SCRIPT) + BROKER)
    send(ports["4101"], *(report.adm() for report in REPORTS))
    send(ports["4103"], *(user_adm(*user) for user in USERS))
    count = "SELECT VALUE (SELECT VALUE count(*) FROM Warnings r)[0]"
    count += " + (SELECT VALUE count(*) FROM Sightings l)[0]"
    wait_until(lambda: place.rows(count) == [len(REPORTS) + len(USERS)], "all that was sent has arrived")
    yield place
    cluster.run(f"DROP DATAVERSE {name}")


def found(within_s: float, kind: str | None, *places: tuple[float, float]) -> list[str]:
    """The messages of reports inside the window, of the type if one is wanted, once for each place they touch."""
    return sorted(
        report.message
        for report in REPORTS
        for place in places or [(report.x, 0.0)]
        if report.age_s < within_s and kind in (None, report.type) and report.touches(*place)
    )


def messages(results: list[Any]) -> list[str]:
    return sorted(result["warning"]["wording"] for result in results)


def whom_it_told(place: ChannelDataverse, channel: str, calls: dict[str, list[str]]) -> None:
    """Subscribes with these arguments, executes the channel, and compares what each was told."""
    who = {place.subscribe(f"{channel}({call})", "HarbourBroker"): expected for call, expected in calls.items()}
    place.execute(channel, TICK)
    told = place.told(channel, TICK)
    assert {user: messages(told.get(user, [])) for user in who} == who
    assert set(told) <= set(who)


def test_warnings_of_a_hazard(harbour: ChannelDataverse) -> None:
    calls = {'"squall"': found(10, "squall"), '"fog"': found(10, "fog"), '"ice"': []}
    whom_it_told(harbour, "warningsOfChannel", calls)


def test_warnings_at_a_place(harbour: ChannelDataverse) -> None:
    calls = {f"{x}, {y}": found(20, None, (x, y)) for x, y in PLACES}
    whom_it_told(harbour, "warningsAtChannel", calls)


def test_warnings_of_a_hazard_at_a_place(harbour: ChannelDataverse) -> None:
    calls = {f'"{kind}", {x}, {y}': found(30, kind, (x, y)) for kind in ("squall", "ice") for x, y in PLACES}
    whom_it_told(harbour, "warningsOfAtChannel", calls)


def test_warnings_around_a_vessel(harbour: ChannelDataverse) -> None:
    def around(user: str) -> list[str]:
        places = [(x, y) for name, x, y, age in USERS if name == user and age < 10]
        return found(10, None, *places) if places else []

    calls = {f'"{user}"': around(user) for user in ("u1", "u2", "u3", "u4", "u5", "u6", "nobody")}
    whom_it_told(harbour, "warningsAroundChannel", calls)


def test_the_whole_answer_comes_each_period_and_the_ticks_instant_decides(harbour: ChannelDataverse) -> None:
    """Ten seconds later the reports from before are too old, and those stamped ahead of their time are told again."""
    channel = "warningsOfChannel"
    one = harbour.subscribe(f'{channel}("squall")', "HarbourBroker")
    for tick, younger_than_s in ((TICK, 10), (NEXT, 0)):
        harbour.execute(channel, tick)
        assert messages(harbour.told(channel, tick)[one]) == found(younger_than_s, "squall")


def test_the_same_subscription_twice_is_one_interest(harbour: ChannelDataverse) -> None:
    """33 and 33.0 are the same place."""
    statement = "subscribe to warningsAtChannel({}) on HarbourBroker"
    made = [harbour.run(statement.format(each))[0] for each in ("33, -117", "33.0, -117.0", "33, -117.5")]
    assert len({item["subscription"] for item in made}) == 3
    assert [subscription["interest"] == made[0]["interest"] for subscription in made] == [True, True, False]


def test_the_catalog_holds_the_channels(harbour: ChannelDataverse) -> None:
    rows = harbour.rows(
        f'SELECT VALUE c FROM Metadata.Channel c WHERE c.DataverseName = "{harbour.dataverse}" ORDER BY c.ChannelName'
    )
    assert [(row["ChannelName"], row["Kind"], row["Duration"], row["ParameterTypes"]) for row in rows] == [
        ("warningsAroundChannel", "REPETITIVE", "PT10S", ["string"]),
        ("warningsAtChannel", "REPETITIVE", "PT20S", ["double", "double"]),
        ("warningsOfAtChannel", "REPETITIVE", "PT30S", ["string", "double", "double"]),
        ("warningsOfChannel", "REPETITIVE", "PT10S", ["string"]),
    ]
