"""A map of roads: crossings and straight roads between them, with shortest paths."""

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

PointM = tuple[float, float]
_WORD: Final = re.compile("LINESTRING", re.IGNORECASE)
# After the word: the dimensions, then one line in parentheses, or several in nested parentheses.
_SHAPE: Final = re.compile(r"\s*(?:ZM?|M)?\s*(?:EMPTY\b|\([^()]*(?:\([^()]*\)[^()]*)*\))", re.IGNORECASE)
_LINE: Final = re.compile(r"\(([^()]*)\)")


class RoadMap:
    """Roads that can be walked both ways. Only the largest connected part is kept, so that every path exists."""

    def __init__(self, roads: Iterable[tuple[PointM, PointM]]) -> None:
        neighbours: dict[PointM, dict[PointM, float]] = {}
        for start, other in roads:
            if start != other:
                neighbours.setdefault(start, {})[other] = math.dist(start, other)
                neighbours.setdefault(other, {})[start] = math.dist(start, other)
        if not neighbours:
            raise ValueError("a map needs a road")
        largest = _largest(neighbours)
        self._beside = {place: neighbours[place] for place in largest}
        self.places = tuple(largest)

    def shortest(self, start: PointM, goal: PointM) -> list[PointM]:
        """Returns the places of the shortest path, both ends included (Dijkstra)."""
        best, previous = {start: 0.0}, {start: start}
        waiting = [(0.0, start)]
        while waiting:
            distance_m, place = heapq.heappop(waiting)
            if place == goal:
                break
            if distance_m > best[place]:
                continue
            for following, length_m in self._beside[place].items():
                through_m = distance_m + length_m
                if through_m < best.get(following, math.inf):
                    best[following], previous[following] = through_m, place
                    heapq.heappush(waiting, (through_m, following))
        path = [goal]
        while path[-1] != start:
            path.append(previous[path[-1]])
        return path[::-1]


def grid(stream: np.random.Generator, *, area_m: PointM, block_m: float, closed: float = 0.1) -> RoadMap:
    """A town of square blocks in which this share of the roads is closed, at random."""
    columns, rows = (int(length // block_m) + 1 for length in area_m)
    ways = [((column, row), (column + 1, row)) for column in range(columns - 1) for row in range(rows)]
    ways += [((column, row), (column, row + 1)) for column in range(columns) for row in range(rows - 1)]
    open_ = stream.random(len(ways)) >= closed
    roads = [road for road, is_open in zip(ways, open_.tolist(), strict=True) if is_open]
    return RoadMap(
        ((start[0] * block_m, start[1] * block_m), (end[0] * block_m, end[1] * block_m)) for start, end in roads
    )


def read_wkt(path: Path) -> RoadMap:
    """Reads a map in well-known text: one LINESTRING per road, as the ONE simulator has them, or several in a
    MULTILINESTRING. Shifts it to begin at (0, 0) and ignores heights."""
    try:
        lines = [[_place(point) for point in line.split(",")] for line in _find_lines(path.read_text("utf-8"))]
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    if not any(len(set(line)) > 1 for line in lines):
        raise InputError(f"{path}: no LINESTRING with a road in it")
    east = min(place[0] for line in lines for place in line)
    north = min(place[1] for line in lines for place in line)
    shifted = [[(place[0] - east, place[1] - north) for place in line] for line in lines]
    return RoadMap((start, end) for line in shifted for start, end in itertools.pairwise(line))


def _find_lines(text: str) -> Iterator[str]:
    """Yields the text inside the parentheses of each line. Fails for an unreadable line: skipping it would change
    paths."""
    for word in _WORD.finditer(text):
        shape = _SHAPE.match(text, word.end())
        if shape is None:
            raise ValueError(f"line {text.count(chr(10), 0, word.start()) + 1}: a LINESTRING without its places")
        yield from _LINE.findall(shape[0])


def _place(text: str) -> PointM:
    numbers = [float(word) for word in text.split()]
    if len(numbers) < 2 or not all(map(math.isfinite, numbers)):
        raise ValueError(f"not a place: {text!r}")
    return numbers[0], numbers[1]


def _largest(beside: dict[PointM, dict[PointM, float]]) -> list[PointM]:
    visited: set[PointM] = set()
    parts: list[list[PointM]] = []
    for start in beside:
        if start in visited:
            continue
        part: list[PointM] = []
        waiting = [start]
        visited.add(start)
        while waiting:
            place = waiting.pop()
            part.append(place)
            for following in beside[place]:
                if following not in visited:
                    visited.add(following)
                    waiting.append(following)
        parts.append(part)
    largest = max(parts, key=len)
    return sorted(largest)
