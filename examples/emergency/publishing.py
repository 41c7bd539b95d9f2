"""A minute of emergencies through the feeds of the example, at any speed, sent as `tocsin publish` sends."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from time import perf_counter

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from examples.emergency import data
from tocsin.cli.client import Client
from tocsin.cli.publish import Publisher
from tocsin.cli.records import cutter

_TICK_S = 0.25  # what is due within a tick is one batch

# A line and the second of the minute in which it is sent.
Timed = tuple[float, bytes]


@dataclass(frozen=True, slots=True)
class Published:
    feed: str
    accepted: int
    rejected: Sequence[str]
    """Which, and why."""


@dataclass(slots=True)
class Arrival:
    feeds: list[Published]
    taken_s: float
    visible_s: float
    """How long after the last acknowledgement a query sees everything."""

    @property
    def records(self) -> int:
        return sum(one.accepted + len(one.rejected) for one in self.feeds)


async def play(client: Client, lines: dict[str, Sequence[Timed]], console: Console, *, speed: float) -> Arrival:
    """Sends the lines of each feed when they are due; returns when queries see them."""
    began_s = perf_counter()
    told = {feed: io.StringIO() for feed in lines}
    done = dict.fromkeys(lines, 0)
    with _progress(console, sum(map(len, lines.values()))) as show:

        def publisher(feed: str) -> Publisher:
            def on_progress(records: int, _size_bytes: int) -> None:
                done[feed] = records
                show(sum(done.values()))

            return Publisher(client, f"emergency.{feed}", err=told[feed], on_progress=on_progress)

        publishers = {feed: publisher(feed) for feed in lines}
        async with asyncio.TaskGroup() as tasks:
            for feed, own in lines.items():
                tasks.create_task(publishers[feed].take(_due(own, speed, began_s), cutter("json")))
        taken_s = perf_counter() - began_s
        for one in publishers.values():
            await one.until_visible()
    found = [Published(feed, one.accepted, told[feed].getvalue().splitlines()) for feed, one in publishers.items()]
    return Arrival(found, taken_s, perf_counter() - began_s - taken_s)


async def _due(lines: Sequence[Timed], speed: float, began_s: float) -> AsyncIterator[bytes | None]:
    """The lines at their time, those of a tick together; None says to send them."""
    for tick, together in groupby(lines, key=lambda line: int(line[0] / speed / _TICK_S) + 1):
        await asyncio.sleep(max(0.0, began_s + tick * _TICK_S - perf_counter()))
        yield b"".join(line for _, line in together)
        yield None


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Callable[[int], None]]:
    """A line that lives while somebody looks at it."""
    if not sys.stdout.isatty():
        yield lambda _records: None
        return
    began_s = perf_counter()
    columns = (TextColumn("  publishing"), BarColumn(), TextColumn("{task.fields[said]}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total, said="")

        def show(records: int) -> None:
            rate = records / max(perf_counter() - began_s, 1e-3)
            bar.update(task, completed=records, said=f"{records:,} of {total:,} records, {rate:,.0f} records/s")

        yield show


def lines_of(minute: data.Minute) -> dict[str, Sequence[Timed]]:
    """The minute as its two feeds take it, and in the middle one report that cannot be right."""
    reports = [(second, data.report_json(one)) for second, one in minute.reports]
    broken = (data.MINUTE_S / 2, BROKEN)
    return {
        "ReportFeed": sorted([*reports, broken]),
        "LocationFeed": [(second, data.location_json(one)) for second, one in minute.places],
    }


BROKEN = b'{"emergencyType": "flood", "severity": "extreme", "message": "The cellar is under water"}\n'
