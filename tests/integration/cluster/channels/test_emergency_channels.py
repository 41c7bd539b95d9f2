"""The channels of the example: who is told of what, for places and people in and out of the zones and the windows.

Those with a period are executed for an instant of long ago, around which the reports are stamped, so that their own
ticks find nothing. Those without run by themselves when the reports come, whatever their stamps say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from examples.emergency import data
from examples.emergency.data import Place, Report, Shelter, UserLocation
from tests.support.channels_in_process import ChannelDataverse
from tests.support.in_process_cluster import LocalCluster
from tests.unit.test_docs import table_after
from tocsin.language.syntax import script
from tocsin.language.syntax.statements import CreateChannel, CreateFunction
from tocsin.rules.model.values import duration_text

HERE = Path(__file__).parents[4] / "examples" / "emergency"
TICK = datetime(2096, 2, 29, 23, 59, 50, 250_000, tzinfo=UTC)
# Ahead of the clock: however slowly this runs, it is within the last minute.
NOW = datetime.now(UTC) + timedelta(hours=1)
ZONE_M = 500.0
AGES_S = (-5.0, 9.999, 10.0, 19.999, 20.0, 29.999, 30.0, 59.999, 60.0, 86_400.0)
HARBOUR, VALLEY, OUT_AT_SEA = Place(-41.28, 174.80), Place(-41.20, 174.90), Place(-41.5, 175.5)


def north_of(place: Place, metres: float) -> Place:
    return Place(place.latitude + metres / data.METRES_PER_DEGREE, place.longitude)


REPORTS = [
    Report(kind, 5, center, ZONE_M, TICK - timedelta(seconds=age), f"{kind} {age:g} s ago {where}")
    for kind in ("flood", "fire")
    for age in AGES_S
    for where, center in (("at the harbour", HARBOUR), ("in the valley", VALLEY))
]
PLACES = [HARBOUR, north_of(HARBOUR, 499), north_of(HARBOUR, 501), VALLEY, OUT_AT_SEA]
KINDS = ["flood", "storm"]
SEEN = TICK - timedelta(seconds=9)
USERS = [
    UserLocation("inside", north_of(HARBOUR, 499), SEEN),
    UserLocation("outside", north_of(HARBOUR, 501), SEEN),
    UserLocation("valley", VALLEY, SEEN),
    UserLocation("left", HARBOUR, TICK - timedelta(seconds=10)),
    UserLocation("now", HARBOUR, NOW),
    UserLocation("now outside", OUT_AT_SEA, NOW),
]
SHELTERS = [
    Shelter("Pier", north_of(HARBOUR, 100), 10, open=True),
    Shelter("Depot", north_of(HARBOUR, -499), 20, open=True),
    Shelter("Ferry", north_of(HARBOUR, 600), 30, open=True),
    Shelter("Mill", VALLEY, 40, open=True),
]


def text(name: str) -> str:
    """A script of the example, for whatever dataverse is in use."""
    return re.sub(r"(?m)^(CREATE DATAVERSE|USE) emergency\b.*;$", "", (HERE / name).read_text("utf-8"))


@dataclass(frozen=True)
class Case:
    """A channel of the example; `window_s` None: every new report counts."""

    name: str
    arguments: tuple[str, ...]
    window_s: int | None
    with_shelters: bool = False

    def subscribers(self) -> Iterator[tuple[str, str | None, list[Place]]]:
        """Arguments, and what they mean: a type, and the places of which one must be in the zone."""
        kinds: list[str | None] = [*KINDS] if "type" in self.arguments else [None]
        for kind in kinds:
            said = [] if kind is None else [f'"{kind}"']
            if "place" in self.arguments:
                for place in PLACES:
                    yield ", ".join([*said, repr(place.latitude), repr(place.longitude)]), kind, [place]
            elif "user" in self.arguments:
                for user in (*(user.user_name for user in USERS), "nobody"):
                    yield ", ".join([*said, f'"{user}"']), kind, self.seen(user)
            else:
                yield said[0], kind, [HARBOUR, VALLEY]

    def seen(self, user: str) -> list[Place]:
        since = TICK - timedelta(seconds=self.window_s) if self.window_s is not None else NOW - timedelta(seconds=60)
        return [item.place for item in USERS if item.user_name == user and item.timestamp > since]

    def expected(self, kind: str | None, places: list[Place]) -> dict[str, list[str] | None]:
        since = datetime.min.replace(tzinfo=UTC)
        if self.window_s is not None:
            since = TICK - timedelta(seconds=self.window_s)
        return {
            report.message: sorted(s.name for s in SHELTERS if report.covers(s.location))
            if self.with_shelters
            else None
            for report in REPORTS
            if report.timestamp > since and kind in (None, report.emergency_type) and any(map(report.covers, places))
        }


PERIODIC = [
    Case("EmergenciesOfType", ("type",), 10),
    Case("EmergenciesAt", ("place",), 20),
    Case("EmergenciesOfTypeAt", ("type", "place"), 30),
    Case("EmergenciesOfTypeAtWithShelters", ("type", "place"), 60, with_shelters=True),
    Case("EmergenciesNearUser", ("user",), 10),
    Case("EmergenciesOfTypeNearUser", ("type", "user"), 10),
    Case("EmergenciesOfTypeNearUserWithShelters", ("type", "user"), 10, with_shelters=True),
]
AT_ONCE = [replace(channel, name=f"New{channel.name}", window_s=None) for channel in PERIODIC]


@dataclass(frozen=True)
class Town:
    place: ChannelDataverse
    subscribed: dict[str, dict[str, dict[str, list[str] | None]]]
    """Per channel and subscription what is expected."""


def _lines(records: Iterable[Any]) -> bytes:
    """As a feed takes them."""
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


@pytest.fixture(scope="module")
def town(cluster: LocalCluster) -> Iterator[Town]:
    """The example's channels, with people and shelters, subscriptions and then reports through its feed."""
    name = f"emergency{uuid4().hex}"
    cluster.run(f"CREATE DATAVERSE {name}")
    place = ChannelDataverse(cluster, name)
    place.run(text("schema.sql") + text("channels.sql"))
    place.run(
        "CONNECT FEED ReportFeed TO DATASET Reports; START FEED ReportFeed;"
        "CONNECT FEED LocationFeed TO DATASET UserLocations; START FEED LocationFeed;"
        + "".join(f"INSERT INTO Shelters {_shelter(shelter)};" for shelter in SHELTERS)
    )
    place.send(_lines(map(data.location_record, USERS)), feed="LocationFeed")
    subscribed = {}
    for case in (*PERIODIC, *AT_ONCE):
        wanted = list(case.subscribers())
        made = place.run(";".join(f"SUBSCRIBE TO {case.name}({said}) ON Town" for said, _, _ in wanted))
        subscribed[case.name] = {
            item["subscription"]: case.expected(kind, places)
            for item, (_, kind, places) in zip(made, wanted, strict=True)
        }
    place.send(_lines(map(data.report_record, REPORTS)), feed="ReportFeed")
    yield Town(place, subscribed)
    cluster.run(f"DROP DATAVERSE {name}")


def _shelter(one: Shelter) -> str:
    return f'{{"name": "{one.name}", "location": create_point({one.location.latitude!r}, {one.location.longitude!r})}}'


def messages(results: list[Any]) -> dict[str, list[str] | None]:
    found = {
        result["report"]["message"]: sorted(s["name"] for s in result["shelters"]) if "shelters" in result else None
        for result in results
    }
    assert len(found) == len(results), "told twice"
    return found


def assert_told(town: Town, channel: str, tick: datetime | None) -> None:
    town.place.execute(channel, tick)
    told = town.place.told(channel, tick)
    expected = town.subscribed[channel]
    assert any(expected.values())
    assert not all(expected.values())
    assert {item: messages(told.get(item, [])) for item in expected} == expected


@pytest.mark.parametrize("case", PERIODIC, ids=lambda case: case.name)
def test_once_a_period_everybody_is_told_of_the_window(town: Town, case: Case) -> None:
    assert_told(town, case.name, TICK)


@pytest.mark.parametrize("case", AT_ONCE, ids=lambda case: case.name)
def test_everybody_is_told_of_a_new_report_once(town: Town, case: Case) -> None:
    assert_told(town, case.name, None)
    # There is nothing new now, and nobody is told anything.
    assert_told(town, case.name, None)


def test_the_period_of_each_channel_is_how_far_its_function_looks_back() -> None:
    looks_back = {
        f"{statement.name}@{len(statement.parameters)}": set(
            re.findall(r'duration\("(PT\d+S)"\)', statement.body or "")
        )
        for statement in script.statements(text("schema.sql"))
        if isinstance(statement, CreateFunction)
    }
    channels = [
        statement for statement in script.statements(text("channels.sql")) if isinstance(statement, CreateChannel)
    ]
    periods = {
        f"{channel.function}@{channel.arity}": {str(channel.period and duration_text(channel.period))}
        for channel in channels
        if not channel.continuous
    }
    assert {name: {item.replace("PT60S", "PT1M") for item in found} for name, found in looks_back.items()} == periods
    assert [channel.name.name for channel in channels] == [case.name for case in (*PERIODIC, *AT_ONCE)]
    assert [case.window_s for case in PERIODIC] == [10, 20, 30, 60, 10, 10, 10]


def test_the_documentation_of_the_example_lists_the_channels_with_their_periods() -> None:
    told = table_after((HERE / "README.md").read_text("utf-8"), "## Channels")
    assert told == {case.name: [f"{case.window_s} s", f"`New{case.name}`"] for case in PERIODIC}
