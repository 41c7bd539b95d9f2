"""A few people who subscribe to channels of the example, and what plain Python says that each should be told."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from examples.emergency.data import Place, Report, Shelter, UserLocation

NEAR: Final = "NewEmergenciesNearUser"
AT: Final = "NewEmergenciesOfTypeAtWithShelters"

ASKED: Final = f"""SELECT s.param0 AS who, r.result.report.emergencyType AS told, r.result.report.message
FROM {NEAR}Results AS r, {NEAR}Subscriptions AS s
WHERE r.subscriptionId = s.subscriptionId
ORDER BY who, told"""
ASKED_WITH_SHELTERS: Final = f"""SELECT r.result.report.message, s.name AS shelter, s.beds
FROM {AT}Results AS r, r.result.shelters AS s
ORDER BY shelter"""

# What a subscriber was told: who, the type, the message.
Told = tuple[str, str, str]


def definition(name: str) -> str:
    """A channel or a broker as channels.sql makes it."""
    script = (Path(__file__).parent / "channels.sql").read_text("utf-8")
    pattern = rf"^CREATE (?:BROKER {name} [^;]*|CONTINUOUS CHANNEL {name}\(.*?^}});"
    found = re.search(pattern, script, re.MULTILINE | re.DOTALL)
    assert found is not None, name
    return found[0]


@dataclass(frozen=True, slots=True)
class Subscribers:
    """Users who want to hear of everything where they are, and a home that worries about floods."""

    users: Sequence[UserLocation]
    home: Place

    def statements(self) -> str:
        near = [f'SUBSCRIBE TO {NEAR}("{one.user_name}") ON Town;' for one in self.users]
        at = f'SUBSCRIBE TO {AT}("flood", {self.home.latitude!r}, {self.home.longitude!r}) ON Town;'
        return "\n".join([*near, at])

    def seen_at(self, now: datetime) -> list[UserLocation]:
        return [replace(one, timestamp=now) for one in self.users]

    def reports(self, now: datetime, near: Callable[[Place, float], Place]) -> list[Report]:
        """One beside the first user, one around the home, one for all of them, one that concerns nobody here."""
        first = self.users[0].place
        far = Place(self.home.latitude + 2.0, self.home.longitude)
        found = [
            ("landslide", near(first, 200), 500.0, "The slope above the station is moving"),
            ("flood", near(self.home, 500), 4_000.0, "The stream has left its bed"),
            ("storm", near(self.home, 500), 9_000.0, "Gusts of 140 km/h; stay where you are"),
            ("flood", far, 1_000.0, "Two hundred kilometres from here"),
        ]
        return [
            Report(kind, 6 + i, center, radius_m, now + timedelta(milliseconds=i), message)
            for i, (kind, center, radius_m, message) in enumerate(found)
        ]

    def told(self, reports: Iterable[Report]) -> Counter[Told]:
        """What the users are told of these."""
        return Counter(
            (user.user_name, one.emergency_type, one.message)
            for one in reports
            for user in self.users
            if one.covers(user.place)
        )

    def told_at_home(self, reports: Iterable[Report], shelters: Iterable[Shelter]) -> list[dict[str, Any]]:
        """One row for each shelter in the zone of a flood at home."""
        ordered = sorted(shelters, key=lambda each: each.name)
        floods = [one for one in reports if one.emergency_type == "flood" and one.covers(self.home)]
        return [
            {"message": flood.message, "shelter": one.name, "beds": one.beds}
            for one in ordered
            for flood in floods
            if flood.covers(one.location)
        ]
