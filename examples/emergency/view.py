"""Shows the demo: a live map in a terminal, lines of text elsewhere, and the table at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from statistics import quantiles
from time import localtime, strftime, time
from typing import Final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from examples.emergency.auditor import RULES, Heard, History, Verdict, channel_of
from examples.emergency.data import METRES_PER_DEGREE, WELLINGTON, Place, Report
from examples.emergency.people import FLARE, Person

_LATEST: Final = 6
_LINE_EVERY_S: Final = 5.0
_PICTURE_EVERY_S: Final = 0.5
_ZONE_S: Final = 5.0  # how long a zone is shown
_ROWS, _COLUMNS = 18, 54
_REACH_M: Final = 9_000.0  # from the middle of the map to its border
_COLOURS: Final = {"earthquake": "magenta", "fire": "red", "flood": "blue", "storm": "cyan", "landslide": "yellow"}


class View:
    """Shows the running demo; where there is no terminal, it prints a line every `line_every_s`."""

    def __init__(
        self, console: Console, history: History, people: Sequence[Person], line_every_s: float = _LINE_EVERY_S
    ) -> None:
        self._console = console
        self._history = history
        self._people = people
        self._line_every_s = line_every_s
        self.phase = "running"

    async def run(self) -> None:
        """Updates the display until it is cancelled."""
        if not self._console.is_terminal:
            while True:
                await asyncio.sleep(self._line_every_s)
                self._console.print(f"  {clock(time())} {self._figures()}", soft_wrap=True)
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            while True:
                live.update(self._picture(time()), refresh=True)
                await asyncio.sleep(_PICTURE_EVERY_S)

    def _figures(self) -> str:
        online = sum(person.online for person in self._people)
        return (
            f"{self.phase}: {online} of {len(self._people)} online, published {places_of(self._history):,} locations, "
            f"{len(self._history.reports):,} reports, delivered {len(self._history.heard):,} results"
        )

    def _picture(self, now_s: float) -> RenderableType:
        return Group(Text(self._figures(), style="bold"), *self._map(now_s), *self._latest())

    def _map(self, now_s: float) -> Iterator[Text]:
        """Yields the lines of the map: new zones, users online (•) and offline (·), users with a new result (●)."""
        zones = [sent.report for sent in self._history.reports[-20:] if sent.sent_s > now_s - _ZONE_S]
        served = {heard.user for heard in self._history.heard[-500:] if heard.at_s > now_s - 1.0}
        people = {cell_of(person.here): person for person in self._people}
        people |= {cell_of(person.here): person for person in self._people if person.name in served}
        for row in range(_ROWS):
            line = Text("  ")
            for column in range(_COLUMNS):
                zone = next((report for report in reversed(zones) if report.covers(place_of(row, column))), None)
                line.append(*_map_cell(people.get((row, column)), zone, served))
            yield line

    def _latest(self) -> Iterator[Text]:
        for heard in [heard for heard in self._history.heard[-200:] if kind_of(heard) != FLARE][-_LATEST:]:
            report = heard.result.result["report"]
            line = Text(f"  {clock(heard.at_s)}  ", style="dim", overflow="ellipsis", no_wrap=True)
            line.append(f"{heard.user}: ", style="not dim bold")
            line.append(f"{kind_of(heard)} of severity {report['severity']}. {report['message']}", style="not dim")
            yield line if heard.live else line.append(", was offline", style="not dim cyan")


def _map_cell(person: Person | None, zone: Report | None, served: set[str]) -> tuple[str, str]:
    """Returns the character of a cell and its style."""
    ground = f" on {_COLOURS.get(zone.emergency_type, 'white')}" if zone is not None else ""
    if person is None:
        return " ", ground
    if person.name in served:
        return "●", f"bold bright_white{ground}"
    return ("•", f"green{ground}") if person.online else ("·", f"dim{ground}")


def cell_of(place: Place) -> tuple[int, int]:
    """Returns the row and column of a place on the map."""
    north_m = (place.latitude - WELLINGTON.latitude) * METRES_PER_DEGREE
    east_m = (place.longitude - WELLINGTON.longitude) * METRES_PER_DEGREE * 0.75
    return int((_REACH_M - north_m) / (2 * _REACH_M) * _ROWS), int((_REACH_M + east_m) / (2 * _REACH_M) * _COLUMNS)


def place_of(row: int, column: int) -> Place:
    """Returns the middle of a cell."""
    north_m = _REACH_M - (row + 0.5) * 2 * _REACH_M / _ROWS
    east_m = (column + 0.5) * 2 * _REACH_M / _COLUMNS - _REACH_M
    return Place(
        WELLINGTON.latitude + north_m / METRES_PER_DEGREE, WELLINGTON.longitude + east_m / METRES_PER_DEGREE / 0.75
    )


def clock(at_s: float) -> str:
    return strftime("%H:%M:%S", localtime(at_s))


def places_of(history: History) -> int:
    return sum(map(len, history.places.values()))


def kind_of(heard: Heard) -> str:
    return str(heard.result.result["report"]["emergencyType"])


# ---------------------------------------------------------------- at the end


def table_of(history: History, verdict: Verdict, people: int, hit_ratio: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_header=False)
    results = {(heard.result.interest, heard.result.cursor) for heard in history.heard}
    interests = {interest for _, interest in history.watches}
    offline = sum(not heard.live for heard in history.heard)
    for name, value in (
        ("published", f"{len(history.reports):,} reports, {places_of(history):,} locations of {people:,} users"),
        ("matched", f"{len(results):,} results for {len(interests):,} interests"),
        (
            "delivered",
            f"{len(history.heard):,} results, {offline:,} of them to users who were offline when it was reported",
        ),
        ("hit ratio", hit_ratio),
        ("latency, online", latency_text(from_sending_s(history))),
        ("latency, offline", f"{latency_text(from_return_s(history))}, after the return"),
        ("required", f"{verdict.due:,}"),
        ("duplicates", f"{verdict.duplicates:,}"),
        ("wrong", f"{len(verdict.wrong):,}"),
        ("lost", f"{len(verdict.lost):,}"),
    ):
        bad = (name == "lost" and verdict.lost) or (name == "wrong" and verdict.wrong)
        table.add_row(Text(name, style="bold"), Text(value, style="bold red" if bad else ""))
    return table


def from_sending_s(history: History) -> list[float]:
    """Returns the times from the sending of a report to its delivery by a continuous channel, for users online."""
    return [heard.at_s - history.reports[heard.number].sent_s for heard in _continuous_results(history) if heard.live]


def from_return_s(history: History) -> list[float]:
    """Returns the times from the return to the delivery, for users who were offline when the report was sent."""
    return [
        heard.at_s - heard.online_since_s
        for heard in _continuous_results(history)
        if not heard.live and heard.online_since_s <= heard.at_s
    ]


def _continuous_results(history: History) -> Iterator[Heard]:
    return (
        heard
        for heard in history.heard
        if RULES[channel_of(heard)].window_s is None and kind_of(heard) != FLARE and heard.number < len(history.reports)
    )


def latency_text(took_s: Sequence[float]) -> str:
    if len(took_s) < 2:
        return "–"
    cuts = quantiles(took_s, n=100)
    return f"{cuts[49]:.2f} s in the median, {cuts[98]:.2f} s at the 99th percentile"
