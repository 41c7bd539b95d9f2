"""Generates the scenario of a city in an emergency, as in the edge-caching paper's prototype.

Each part of it has a random stream of its own. So a file can replace one part, such as the movements, and everything
else is generated from the seed as before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final

import numpy as np

from tocsin.lab.engine.streams import Streams
from tocsin.lab.scenarios import scenario as acts
from tocsin.lab.scenarios.movement import MovementPace, MovementPath, along_roads, random_waypoint
from tocsin.lab.scenarios.roads import RoadMap, grid
from tocsin.lab.scenarios.scenario import Scenario, Step, scenario
from tocsin.lab.workloads.laws import distinct_choices, on_off_moments, popularity
from tocsin.wire.errors import InputError

_MOVEMENTS: Final = ("waypoint", "roads")
# Channel, kinds of its parameters (a type, a place, the subscriber), and period: the paper's Table III, with the names
# of the functions in the emergency example.
CHANNELS: Final[tuple[tuple[str, str, float], ...]] = (
    ("emergenciesOfType", "type", 10.0),
    ("emergenciesAt", "place", 20.0),
    ("emergenciesOfTypeAt", "type place", 30.0),
    ("emergenciesOfTypeAtWithShelters", "type place", 60.0),
    ("emergenciesNearUser", "user", 10.0),
    ("emergenciesOfTypeNearUser", "type user", 10.0),
    ("emergenciesOfTypeNearUserWithShelters", "type user", 10.0),
)
_TYPES: Final = tuple("flood fire earthquake tornado shooting storm landslide outage spill tsunami".split())
_WORDS: Final = "stay away from low ground and listen for news; help is on its way to those who need it most. "

_CityParameters = tuple[str | float, ...]
CityInterest = tuple[str, _CityParameters]


@dataclass(frozen=True, slots=True)
class City:
    """The prototype's numbers where the paper gives them; the others are settings.

    400 subscribers, some 3,500 subscriptions to some 800 interests, an hour, a publication of 200 to 1,000 bytes about
    every 10 seconds.
    """

    subscribers: int = 400
    subscriptions: int = 3_500
    span_s: float = 3600.0
    movement: str = "waypoint"
    area_m: tuple[float, float] = (10_000.0, 10_000.0)
    places: int = 30
    zipf_exponent: float = 1.0
    near_share: float = 0.08
    """The share of subscriptions to events near the subscriber, which no other subscriber shares."""
    churn: float = 0.1
    """The share of subscriptions that end before the hour does."""
    join_s: float = 120.0
    on_s: tuple[float, float] = (1.753 + math.log(60), 1.425)
    off_s: tuple[float, float] = (2.415 + math.log(60), 1.11)
    publish_every_s: float = 10.0
    message_bytes: tuple[int, int] = (200, 1_000)
    shelter_share: float = 0.1
    zone_every_s: float = 120.0
    move_every_s: float = 60.0

    def __post_init__(self) -> None:
        if self.movement not in _MOVEMENTS:
            raise ValueError(f"movement: must be one of {', '.join(_MOVEMENTS)}, got {self.movement}")
        for name in ("subscribers", "places", "span_s", "publish_every_s", "zone_every_s", "move_every_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: must be > 0, got {getattr(self, name)}")
        for name in ("near_share", "churn", "shelter_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: must be from 0 to 1, got {getattr(self, name)}")
        # At the upper end everybody chooses the first interest; a larger power would overflow.
        if not 0 <= self.zipf_exponent <= 10:
            raise ValueError(f"zipf_exponent: must be from 0 to 10, got {self.zipf_exponent}")
        # Beyond this a subscriber would have to hold an interest twice.
        most = self.subscribers * (1 + 2 * len(_TYPES))
        if not 0 <= self.subscriptions <= most:
            raise ValueError(f"subscriptions: must be from 0 to {most}, got {self.subscriptions}")
        if not 0 <= self.join_s <= self.span_s:
            raise ValueError(f"join_s: must be from 0 to {self.span_s:g}, got {self.join_s}")


@dataclass(frozen=True, slots=True)
class CityInputs:
    """Inputs from files instead of chance: the roads of a map, the paths of people, and when they are online.

    If `ways` or `online` names the people, the city has as many subscribers. `about` names the sources.
    """

    about: Mapping[str, str] = field(default_factory=dict)
    roads: RoadMap | None = None
    ways: Mapping[str, MovementPath] | None = None
    online: Mapping[str, Sequence[tuple[float, float]]] | None = None

    def names(self) -> list[str] | None:
        by_name = self.online if self.ways is None else self.ways
        return None if by_name is None else list(by_name)


def city_scenario(city: City, seed: int, inputs: CityInputs | None = None) -> Scenario:
    """Generates all steps of an hour; the same for the same city, seed and inputs."""
    if seed < 0:
        raise InputError(f"seed: must not be negative, got {seed}")
    inputs = inputs or CityInputs()
    streams = Streams(seed).within("city")
    names = inputs.names() or [f"s{number:04d}" for number in range(city.subscribers)]
    online = list(_sessions(city, streams) if inputs.online is None else _read_sessions(inputs.online, names, city))
    steps = [
        *_log_steps(online, names, city),
        *_subscription_steps(city, names, streams),
        *_move_steps(city, names, list(_ways(city, names, streams, inputs)), online),
        *_publish_steps(city, streams),
    ]
    about: dict[str, Any] = {"made": "city", "seed": seed, "settings": asdict(city), **inputs.about}
    return scenario(about, steps)


def city(settings: Mapping[str, str], base: City | None = None) -> City:
    """Returns the city with these settings, given as text. `InputError` names the setting that does not fit."""
    values = parse_city_settings(settings)
    try:
        return replace(base or City(), **values)
    except ValueError as error:
        raise InputError(str(error)) from None


def parse_city_settings(settings: Mapping[str, str]) -> dict[str, Any]:
    """Parses settings of a city. `InputError` names an unknown setting, or a value that is not a number."""
    defaults = {
        setting.name: setting.default for setting in fields(City) if isinstance(setting.default, int | float | str)
    }
    values: dict[str, Any] = {}
    for name, text in settings.items():
        if name not in defaults:
            raise InputError(f"a city has no setting {name}", hint=f"it has: {', '.join(defaults)}")
        try:
            values[name] = type(defaults[name])(text)
        except ValueError:
            raise InputError(f"{name}: must be a number, got {text!r}") from None
    return values


_OnlineSpan = tuple[int, float, float]


def _sessions(city: City, streams: Streams) -> Iterator[_OnlineSpan]:
    """Yields who is online from when to when."""
    at_s, people, on = on_off_moments(
        streams.of("sessions"), city.subscribers, city.span_s, on_s=city.on_s, off_s=city.off_s
    )
    begun: dict[int, float] = {}
    for index in np.argsort(at_s, kind="stable").tolist():
        person = int(people[index])
        if on[index]:
            begun[person] = float(at_s[index])
        elif person in begun:
            yield person, begun.pop(person), float(at_s[index])
    for person, begin_s in begun.items():
        yield person, begin_s, math.inf


def _read_sessions(
    online: Mapping[str, Sequence[tuple[float, float]]], names: Sequence[str], city: City
) -> Iterator[_OnlineSpan]:
    for person, name in enumerate(names):
        for begin_s, end_s in online.get(name, ()):
            if begin_s < city.span_s:
                yield person, begin_s, end_s


def _log_steps(online: list[_OnlineSpan], names: Sequence[str], city: City) -> Iterator[Step]:
    for person, begin_s, end_s in online:
        yield Step(begin_s, acts.LogInStep(names[person]))
        if end_s < city.span_s:
            yield Step(end_s, acts.LogOutStep(names[person]))


def _move_steps(
    city: City, names: Sequence[str], ways: Sequence[MovementPath], online: list[_OnlineSpan]
) -> Iterator[Step]:
    for person, begin_s, end_s in online:
        # Report a position on login, and then at the common multiples of the period.
        first = math.floor(begin_s / city.move_every_s) + 1
        last_s = min(end_s, city.span_s)
        report_times_s = [number * city.move_every_s for number in range(first, math.ceil(last_s / city.move_every_s))]
        for at_s in (begin_s, *report_times_s):
            east_m, north_m = ways[person].place(at_s)
            yield Step(at_s, acts.MoveStep(names[person], round(east_m, 1), round(north_m, 1)))


def _ways(city: City, names: Sequence[str], streams: Streams, inputs: CityInputs) -> Iterator[MovementPath]:
    person_streams = streams.within("movement")
    pace = MovementPace()
    roads = inputs.roads
    if roads is None and city.movement == "roads":
        roads = grid(streams.of("roads"), area_m=city.area_m, block_m=500.0)
    for name in names:
        if inputs.ways is not None:
            yield inputs.ways[name]
        elif roads is None:
            yield random_waypoint(person_streams.of(name), area_m=city.area_m, pace=pace, span_s=city.span_s)
        else:
            yield along_roads(person_streams.of(name), roads=roads, pace=pace, span_s=city.span_s)


def _subscription_steps(city: City, names: Sequence[str], streams: Streams) -> Iterator[Step]:
    shared = _shared_interests(city, streams)
    probabilities = popularity("zipf", len(shared), exponent=city.zipf_exponent)
    choices_each = math.ceil(city.subscriptions / city.subscribers)
    choices = distinct_choices(
        streams.of("interests"), probabilities, city.subscribers, min(choices_each, len(shared))
    ).tolist()
    chance, joining = streams.of("subscriptions"), streams.of("joining")
    for number in range(city.subscriptions):
        person, turn = number % city.subscribers, number // city.subscribers
        name = names[person]
        near_draw, end_draw = chance.random(2).tolist()
        channel, parameters = _near(name, turn) if near_draw < city.near_share else shared[choices[person][turn]]
        at_s = float(joining.uniform(0, city.join_s))
        yield Step(at_s, acts.SubscribeStep(name, channel, parameters))
        if end_draw < city.churn:
            end_s = at_s + float(joining.uniform(0, city.span_s - at_s))
            yield Step(end_s, acts.UnsubscribeStep(name, channel, parameters))


def _shared_interests(city: City, streams: Streams) -> list[CityInterest]:
    """Returns all interests that subscribers can share, the most popular first, in random order."""
    drawn = streams.of("places").uniform(0, 1, (city.places, 2)) * np.array(city.area_m)
    places = [(round(east_m, 1), round(north_m, 1)) for east_m, north_m in drawn.tolist()]
    interests: list[CityInterest] = []
    for channel, kinds, _ in CHANNELS:
        if kinds == "type":
            interests += [(channel, (kind,)) for kind in _TYPES]
        elif kinds == "place":
            interests += [(channel, place) for place in places]
        elif kinds == "type place":
            interests += [(channel, (kind, *place)) for kind in _TYPES for place in places]
    return [interests[index] for index in streams.of("popularity").permutation(len(interests)).tolist()]


def _near(name: str, turn: int) -> CityInterest:
    """A subscriber's own interest for a turn; turns go through all channels first."""
    own_interests: list[CityInterest] = [(channel, (name,)) for channel, kinds, _ in CHANNELS if kinds == "user"]
    typed = [channel for channel, kinds, _ in CHANNELS if kinds == "type user"]
    own_interests += [(channel, (kind, name)) for kind in _TYPES for channel in typed]
    return own_interests[turn % len(own_interests)]


def _publish_steps(city: City, streams: Streams) -> Iterator[Step]:
    zones = make_travelling_zones(
        streams.of("zones"), _TYPES, area_m=city.area_m, span_s=city.span_s, every_s=city.zone_every_s
    )
    stream = streams.of("publications")
    at_s = float(stream.exponential(city.publish_every_s))
    number = 0
    while at_s < city.span_s:
        active = [zone for zone in zones if zone.active(at_s)]
        if active and stream.random() >= city.shelter_share:
            yield Step(
                at_s,
                acts.PublishStep("ReportFeed", _report(active[int(stream.integers(len(active)))], at_s, city, stream)),
            )
        else:
            yield Step(at_s, acts.PublishStep("ShelterFeed", _shelter(number, city, stream)))
        number += 1
        at_s += float(stream.exponential(city.publish_every_s))


def _report(zone: Zone, at_s: float, city: City, stream: np.random.Generator) -> dict[str, Any]:
    east_m, north_m = zone.centre(at_s)
    size_bytes = int(stream.integers(*city.message_bytes, endpoint=True))
    return {
        "emergencyType": zone.kind,
        "severity": zone.severity,
        "east_m": round(east_m, 1),
        "north_m": round(north_m, 1),
        "radius_m": round(zone.radius_m, 1),
        "message": (_WORDS * (size_bytes // len(_WORDS) + 1))[:size_bytes],
    }


def _shelter(number: int, city: City, stream: np.random.Generator) -> dict[str, Any]:
    east_m, north_m = (round(float(stream.uniform(0, length)), 1) for length in city.area_m)
    return {"name": f"Shelter {number}", "east_m": east_m, "north_m": north_m, "beds": int(stream.integers(10, 400))}


@dataclass(frozen=True, slots=True)
class Zone:
    """An impact zone that moves evenly while it lasts."""

    kind: str
    severity: int
    begin_s: float
    end_s: float
    east_m: float
    north_m: float
    east_m_per_s: float
    north_m_per_s: float
    radius_m: float

    def active(self, now_s: float) -> bool:
        return self.begin_s <= now_s < self.end_s

    def centre(self, now_s: float) -> tuple[float, float]:
        past_s = min(max(now_s, self.begin_s), self.end_s) - self.begin_s
        return self.east_m + self.east_m_per_s * past_s, self.north_m + self.north_m_per_s * past_s

    def covers(self, now_s: float, place: tuple[float, float]) -> bool:
        return self.active(now_s) and math.dist(self.centre(now_s), place) <= self.radius_m


def make_travelling_zones(
    stream: np.random.Generator,
    kinds: Sequence[str],
    *,
    area_m: tuple[float, float],
    span_s: float,
    every_s: float,
    lasts_s: tuple[float, float] = (300.0, 1800.0),
    speed_m_per_s: tuple[float, float] = (0.0, 10.0),
    radius_m: tuple[float, float] = (200.0, 2000.0),
) -> list[Zone]:
    """Zones that begin as a Poisson process and travel in random directions; the first begins at 0."""
    zones = []
    begin_s = 0.0
    while begin_s < span_s:
        angle = float(stream.uniform(0, 2 * math.pi))
        speed = float(stream.uniform(*speed_m_per_s))
        zones.append(
            Zone(
                kind=kinds[int(stream.integers(len(kinds)))],
                severity=int(stream.integers(1, 11)),
                begin_s=begin_s,
                end_s=begin_s + float(stream.uniform(*lasts_s)),
                east_m=float(stream.uniform(0, area_m[0])),
                north_m=float(stream.uniform(0, area_m[1])),
                east_m_per_s=speed * math.cos(angle),
                north_m_per_s=speed * math.sin(angle),
                radius_m=float(stream.uniform(*radius_m)),
            )
        )
        begin_s += float(stream.exponential(every_s))
    return zones
