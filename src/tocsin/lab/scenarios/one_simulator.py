"""Reads traces of the ONE simulator as scenarios: movement, and connections to access points.

Movement (its ExternalMovement files): a line with the minima and maxima of time and place, then lines `time id x y`.
Connections (its events files): lines `time CONN host host up|down`; other lines are skipped. Both are in order of time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from pathlib import Path

from tocsin.lab.scenarios.scenario import LogInStep, LogOutStep, MoveStep, Scenario, Step
from tocsin.wire.errors import InputError


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
                steps += _changed(at_s, f"{prefix}{host}", point, state, connected.setdefault(host, set()))
    about = {"from": "the ONE simulator's connections", "file": path.name, "span_s": last_s}
    return Scenario(about, tuple(steps))


def _changed(at_s: float, name: str, point: str, state: str, points: set[str]) -> Iterator[Step]:
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
