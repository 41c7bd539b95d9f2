"""Builds a city from files: a map of roads, and traces of the ONE simulator with movements and connections.

Movement (its ExternalMovement files): a line with the minima and maxima of time and place, then lines `time id x y`.
Connections (its events files): lines `time CONN host host up|down`; other lines are skipped. Both are in order of time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tocsin.lab.scenarios.city import City, CityInputs, parse_city_settings
from tocsin.lab.scenarios.movement import MovementPath
from tocsin.lab.scenarios.roads import RoadMap, read_wkt
from tocsin.lab.scenarios.scenario import LogInStep, LogOutStep, MoveStep, Scenario, Step
from tocsin.wire.errors import InputError

_USUAL: Final = City()

_OnlineTimes = dict[str, list[tuple[float, float]]]


def city_from(
    settings: Mapping[str, str],
    *,
    map_: Path | None = None,
    movement: Path | None = None,
    connections: Path | None = None,
    access_points: Collection[str] = (),
) -> tuple[City, CityInputs]:
    """Returns the city of these settings, with what the files define: area, people and span. The settings may override
    the span. Access points are not people. `InputError` names a file that is unreadable or does not fit the others."""
    if map_ is not None and movement is not None:
        raise InputError("a map and a movement trace both say where people go", hint="give one of them")
    if bool(connections) != bool(access_points):
        raise InputError(
            "a trace of connections needs the hosts that count as access points, and they need the trace",
            hint="--connections FILE --access-points HOST,HOST",
        )
    about: dict[str, str] = {}
    base: dict[str, Any] = {}
    roads = ways = online = None
    if map_ is not None:
        _refuse(settings, "movement", "people walk along the roads of the map")
        roads = read_wkt(map_)
        about["map"] = map_.name
        base |= {"movement": "roads", "area_m": _area(roads)}
    if movement is not None:
        _refuse(settings, "movement", "people go where the trace says")
        trace = read_movement(movement)
        ways = {name: path for name, path in _ways(trace).items() if name not in access_points}
        about["movement"] = movement.name
        base |= {"span_s": trace.about["span_s"], "area_m": trace.about["area_m"]}
    if connections is not None:
        connection_trace = read_connections(connections, access_points)
        online = _sessions(connection_trace)
        about["connections"] = connections.name
        base = {"span_s": connection_trace.about["span_s"], **base}
    base |= parse_city_settings(settings)
    inputs = CityInputs(about, roads, ways, online)
    if (names := inputs.names()) is not None:
        base = {**_people(names, settings, base["span_s"]), **base}
        unknown = sorted(set(online or ()) - set(names))
        if unknown:
            raise InputError(f"{connections}: {unknown[0]} connects, and {movement} does not say where it is")
    try:
        return City(**base), inputs
    except ValueError as error:
        raise InputError(str(error)) from None


def _people(names: Collection[str], settings: Mapping[str, str], span_s: float) -> dict[str, Any]:
    """As many subscribers as the trace has, with the usual number of subscriptions, who join within the span."""
    _refuse(settings, "subscribers", "the trace says who there is")
    if not names:
        raise InputError("the trace has no people")
    subscriptions_each = _USUAL.subscriptions / _USUAL.subscribers
    return {
        "subscribers": len(names),
        "subscriptions": round(subscriptions_each * len(names)),
        "join_s": min(_USUAL.join_s, span_s),
    }


def _refuse(settings: Mapping[str, str], name: str, why: str) -> None:
    if name in settings:
        raise InputError(f"--set {name}: {why}", hint="leave it out")


def _area(roads: RoadMap) -> tuple[float, float]:
    return max(place[0] for place in roads.places), max(place[1] for place in roads.places)


def _ways(trace: Scenario) -> dict[str, MovementPath]:
    """Returns the paths: straight and even from place to place, as the ONE simulator moves hosts."""
    moves: dict[str, list[tuple[float, float, float]]] = {}
    for step in trace.steps:
        if isinstance(step.act, MoveStep):
            moves.setdefault(step.act.subscriber, []).append((step.at_s, step.act.east_m, step.act.north_m))
    return {name: MovementPath(*zip(*points, strict=True)) for name, points in moves.items()}


def _sessions(trace: Scenario) -> _OnlineTimes:
    online: _OnlineTimes = {}
    for step in trace.steps:
        if isinstance(step.act, LogInStep):
            online.setdefault(step.act.subscriber, []).append((step.at_s, math.inf))
        elif isinstance(step.act, LogOutStep):
            begin_s, _ = online[step.act.subscriber].pop()
            online[step.act.subscriber].append((begin_s, step.at_s))
    return online


def read_movement(path: Path, *, prefix: str = "") -> Scenario:
    """Reads who is where at which time. Times and places are shifted by the header's minima, as the ONE does.

    `about` has the header's span and area: `span_s`, `area_m`.
    """
    lines = _lines(path)
    number, header = next(lines, (0, []))
    try:
        least_s, most_s, least_east_m, most_east_m, least_north_m, most_north_m = map(_finite, header[:6])
    except ValueError:
        raise InputError(f"{path}, line {number}: begins with: minTime maxTime minX maxX minY maxY") from None
    steps: list[Step] = []
    for number, words in lines:
        try:
            at_s, name, east_m, north_m = _finite(words[0]), words[1], _finite(words[2]), _finite(words[3])
        except (ValueError, IndexError):
            raise InputError(f"{path}, line {number}: must be: time id x y") from None
        if at_s - least_s < (steps[-1].at_s if steps else 0.0):
            raise InputError(f"{path}, line {number}: lines stand in order of time, none before minTime")
        inside = least_east_m <= east_m <= most_east_m and least_north_m <= north_m <= most_north_m
        if at_s > most_s or not inside:
            raise InputError(
                f"{path}, line {number}: {' '.join(words[:4])} lies outside of what the first line says",
                hint="it says: minTime maxTime minX maxX minY maxY",
            )
        steps.append(Step(at_s - least_s, MoveStep(f"{prefix}{name}", east_m - least_east_m, north_m - least_north_m)))
    about = {"span_s": most_s - least_s, "area_m": (most_east_m - least_east_m, most_north_m - least_north_m)}
    return Scenario({"from": "the ONE simulator's movement", "file": path.name, **about}, tuple(steps))


def read_connections(path: Path, access_points: Collection[str], *, prefix: str = "") -> Scenario:
    """Logs a host in while it is connected to at least one access point. `about` has the time of the last change of any
    connection: `span_s`."""
    connected: dict[str, set[str]] = {}
    steps: list[Step] = []
    last_s = 0.0
    for number, words in _lines(path):
        if len(words) < 2 or words[1] != "CONN":
            continue
        try:
            at_s, first, other, state = _finite(words[0]), words[2], words[3], words[4].lower()
        except (ValueError, IndexError):
            raise InputError(f"{path}, line {number}: must be: time CONN host host up|down") from None
        if at_s < last_s:
            raise InputError(f"{path}, line {number}: lines stand in order of time, none before 0")
        last_s = at_s
        if state not in {"up", "down"}:
            raise InputError(f"{path}, line {number}: a connection goes up or down, got {state}")
        for host, point in ((first, other), (other, first)):
            if point in access_points and host not in access_points:
                steps += _change_state(at_s, f"{prefix}{host}", point, state, connected.setdefault(host, set()))
    about = {"from": "the ONE simulator's connections", "file": path.name, "span_s": last_s}
    return Scenario(about, tuple(steps))


def _change_state(at_s: float, name: str, point: str, state: str, points: set[str]) -> Iterator[Step]:
    before = bool(points)
    (points.add if state == "up" else points.discard)(point)
    if bool(points) != before:
        yield Step(at_s, LogInStep(name) if points else LogOutStep(name))


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                words = line.split()
                if words and not words[0].startswith("#"):
                    yield number, words
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not a trace of the ONE simulator: no text in UTF-8") from None


def _finite(word: str) -> float:
    value = float(word)
    if not math.isfinite(value):
        raise ValueError(word)
    return value
