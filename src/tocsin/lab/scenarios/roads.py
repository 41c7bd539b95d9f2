"""A map of roads: crossings and straight roads between them."""

from __future__ import annotations

import heapq
import itertools
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from tocsin.wire.errors import InputError

Place = tuple[float, float]
_WORD: Final = re.compile("LINESTRING", re.IGNORECASE)
# What follows the word: its dimensions, and one line in parentheses or several in parentheses of their own.
_SHAPE: Final = re.compile(r"\s*(?:ZM?|M)?\s*(?:EMPTY\b|\([^()]*(?:\([^()]*\)[^()]*)*\))", re.IGNORECASE)
_LINE: Final = re.compile(r"\(([^()]*)\)")


class RoadMap:
    """Roads that can be walked both ways; only the largest connected part is kept, so that every way exists."""

    def __init__(self, roads: Iterable[tuple[Place, Place]]) -> None:
        beside: dict[Place, dict[Place, float]] = {}
        for one, other in roads:
            if one != other:
                beside.setdefault(one, {})[other] = math.dist(one, other)
                beside.setdefault(other, {})[one] = math.dist(one, other)
        if not beside:
            raise ValueError("a map needs a road")
        largest = _largest(beside)
        self._beside = {place: beside[place] for place in largest}
        self.places = tuple(largest)

    def shortest(self, start: Place, goal: Place) -> list[Place]:
        """The places of the shortest way, both ends included (Dijkstra)."""
        best, came = {start: 0.0}, {start: start}
        waiting = [(0.0, start)]
        while waiting:
            far_m, place = heapq.heappop(waiting)
            if place == goal:
                break
            if far_m > best[place]:
                continue
            for following, length_m in self._beside[place].items():
                through_m = far_m + length_m
                if through_m < best.get(following, math.inf):
                    best[following], came[following] = through_m, place
                    heapq.heappush(waiting, (through_m, following))
        way = [goal]
        while way[-1] != start:
            way.append(came[way[-1]])
        return way[::-1]


def grid(stream: np.random.Generator, *, area_m: Place, block_m: float, closed: float = 0.1) -> RoadMap:
    """A town of square blocks in which so large a share of the roads is closed, by chance."""
    columns, rows = (int(length // block_m) + 1 for length in area_m)
    ways = [((c, r), (c + 1, r)) for c in range(columns - 1) for r in range(rows)]
    ways += [((c, r), (c, r + 1)) for c in range(columns) for r in range(rows - 1)]
    open_ = stream.random(len(ways)) >= closed
    roads = [way for way, is_open in zip(ways, open_.tolist(), strict=True) if is_open]
    return RoadMap(((a[0] * block_m, a[1] * block_m), (b[0] * block_m, b[1] * block_m)) for a, b in roads)


def read_wkt(path: Path) -> RoadMap:
    """A map in well-known text, one LINESTRING per road, as the ONE simulator has them, or several in a
    MULTILINESTRING; shifted to begin at (0, 0). Heights are not looked at."""
    try:
        lines = [[_place(point) for point in line.split(",")] for line in _written(path.read_text("utf-8"))]
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    if not any(len(set(line)) > 1 for line in lines):
        raise InputError(f"{path}: no LINESTRING with a road in it")
    east = min(place[0] for line in lines for place in line)
    north = min(place[1] for line in lines for place in line)
    shifted = [[(place[0] - east, place[1] - north) for place in line] for line in lines]
    return RoadMap((one, other) for line in shifted for one, other in itertools.pairwise(line))


def _written(text: str) -> Iterator[str]:
    """What stands between the parentheses of each line. None is passed over: without it ways would be others."""
    for word in _WORD.finditer(text):
        shape = _SHAPE.match(text, word.end())
        if shape is None:
            raise ValueError(f"line {text.count(chr(10), 0, word.start()) + 1}: a LINESTRING without its places")
        yield from _LINE.findall(shape[0])


def _place(text: str) -> Place:
    numbers = [float(word) for word in text.split()]
    if len(numbers) < 2 or not all(map(math.isfinite, numbers)):
        raise ValueError(f"not a place: {text!r}")
    return numbers[0], numbers[1]


def _largest(beside: dict[Place, dict[Place, float]]) -> list[Place]:
    seen: set[Place] = set()
    parts: list[list[Place]] = []
    for start in beside:
        if start in seen:
            continue
        part: list[Place] = []
        waiting = [start]
        seen.add(start)
        while waiting:
            place = waiting.pop()
            part.append(place)
            for following in beside[place]:
                if following not in seen:
                    seen.add(following)
                    waiting.append(following)
        parts.append(part)
    largest = max(parts, key=len)
    return sorted(largest)
