"""Builds a city from files: a map of roads, and traces of the ONE simulator with movements and connections."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from tocsin.lab.scenarios import one_simulator
from tocsin.lab.scenarios.city import City, CityInputs, chosen
from tocsin.lab.scenarios.movement import MovementPath
from tocsin.lab.scenarios.roads import RoadMap, read_wkt
from tocsin.lab.scenarios.scenario import LogInStep, LogOutStep, MoveStep, Scenario
from tocsin.wire.errors import InputError

_USUAL: Final = City()

Sessions = dict[str, list[tuple[float, float]]]


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
        trace = one_simulator.read_movement(movement)
        ways = {name: path for name, path in _ways(trace).items() if name not in access_points}
        about["movement"] = movement.name
        base |= {"span_s": trace.about["span_s"], "area_m": trace.about["area_m"]}
    if connections is not None:
        connection_trace = one_simulator.read_connections(connections, access_points)
        online = _sessions(connection_trace)
        about["connections"] = connections.name
        base = {"span_s": connection_trace.about["span_s"], **base}
    base |= chosen(settings)
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
        raise InputError("the trace has nobody in it")
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


def _sessions(trace: Scenario) -> Sessions:
    online: Sessions = {}
    for step in trace.steps:
        if isinstance(step.act, LogInStep):
            online.setdefault(step.act.subscriber, []).append((step.at_s, math.inf))
        elif isinstance(step.act, LogOutStep):
            begin_s, _ = online[step.act.subscriber].pop()
            online[step.act.subscriber].append((begin_s, step.at_s))
    return online
