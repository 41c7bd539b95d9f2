"""`./dev demo`: a cluster of its own, the emergency example in it, and questions whose answers are checked.

Every answer is compared with what plain Python makes of the same data; the exit status is 0 only if all agree.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.text import Text

from examples.emergency import data
from examples.emergency.data import Report, Shelter, UserLocation
from examples.emergency.own_cluster import Cluster, DemoError
from examples.emergency.publishing import BROKEN, lines_of, play
from examples.emergency.showing import table_of
from examples.emergency.subscribing import ASKED, ASKED_WITH_SHELTERS, AT, NEAR, Subscribers, definition
from tocsin.cli.client import Client, Row
from tocsin.wire.errors import TocsinError

HERE = Path(__file__).parent
TOLD_LIMIT_S = 60.0

# ---------------------------------------------------------------- what happens in it


@dataclass(slots=True)
class World:
    """What was put in, as plain Python holds it."""

    reports: list[Report] = field(default_factory=list)
    places: dict[str, UserLocation] = field(default_factory=dict)
    shelters: dict[str, Shelter] = field(default_factory=dict)


class Demo:
    def __init__(self, client: Client, console: Console, seed: int, speed: float) -> None:
        self._client = client
        self._console = console
        self._speed = speed
        self._rng = Random(seed)
        self._world = World()
        self.wrong: list[str] = []

    async def run(self) -> None:
        await self._prepare()
        await self._publish()
        await self._arrived()
        await self._counts()
        await self._near_ann()
        await self._shelters_in_zones()
        await self._subscriptions()
        await self._changes()
        await self._refusal()

    # ------------------------------------------------------------ putting data in

    async def _prepare(self) -> None:
        self._say("Creating the types, datasets, indexes, feeds and functions of schema.sql")
        script = (HERE / "schema.sql").read_text("utf-8")
        await self._ask(script)
        self._say("Loading the shelters of shelters.json, and putting in an hour of reports")
        world, now = self._world, datetime.now(UTC)
        world.shelters = {one.name: one for one in data.default_shelters()}
        world.reports = list(data.reports(self._rng, 60, until=now - timedelta(minutes=2)))
        reports = data.records([data.report_text(one) for one in world.reports])
        path = str((HERE / "shelters.json").resolve())
        await self._ask(
            "USE emergency;\n"
            f'LOAD DATASET Shelters USING localfs (("path"="localhost://{path}"), ("format"="json"));\n'
            f"INSERT INTO Reports {reports};"
        )

    async def _publish(self) -> None:
        faster = f", played {self._speed:g} times as fast" if self._speed != 1 else ""
        self._say(f"A minute of emergencies arrives through two feeds{faster}")
        started = """CONNECT FEED ReportFeed TO DATASET Reports; START FEED ReportFeed;
CONNECT FEED LocationFeed TO DATASET UserLocations; START FEED LocationFeed;"""
        self._show(started)
        await self._ask(f"USE emergency;\n{started}")
        minute = data.minute(self._rng, began=datetime.now(UTC), speed=self._speed)
        found = await play(self._client, lines_of(minute), self._console, speed=self._speed)
        self._world.reports += [one for _, one in minute.reports]
        self._world.places |= minute.last_places
        for one in found.feeds:
            self._console.print(f"  {one.feed}: {one.accepted:,} accepted, {len(one.rejected)} rejected")
            for rejected in one.rejected:
                self._console.print(f"    {rejected}", style="yellow", markup=False)
        self._note(
            f"{found.records:,} records in {found.taken_s:.1f} s, {found.records / found.taken_s:,.0f} records/s. "
            f"Queries saw the last one {found.visible_s:.2f} s after it was acknowledged."
        )
        accepted = [one.accepted for one in found.feeds]
        self._check("what the feeds accepted", accepted == [len(minute.reports), len(minute.places)])

    # ------------------------------------------------------------ questions

    async def _arrived(self) -> None:
        self._say("What arrived? Every report once, and the last place of each user")
        query = """SELECT (SELECT VALUE count(*) FROM Reports AS r)[0] AS reports,
       (SELECT VALUE count(*) FROM UserLocations AS l)[0] AS users,
       (SELECT VALUE max(l.timestamp) FROM UserLocations AS l)[0] AS last_seen"""
        self._note("The first question takes longer than those after it: Java is warming up.")
        rows = await self._question(query)
        places = self._world.places
        last_seen = max(one.timestamp for one in places.values())
        told = [(row["reports"], row["users"], datetime.fromisoformat(row["last_seen"])) for row in rows]
        self._check("what arrived", told == [(len(self._world.reports), len(places), last_seen)])

        self._say("And what was rejected is kept with the reason")
        query = "SELECT r.field, r.reason, r.record FROM ReportFeedRejected AS r"
        rows = await self._question(query)
        self._check("what was rejected", [row["record"].encode() for row in rows] == [BROKEN.strip()])

    async def _counts(self) -> None:
        self._say("How many emergencies of each type, and how bad was the worst?")
        query = """SELECT r.emergencyType, count(*) AS reports, max(r.severity) AS worst
FROM Reports AS r
GROUP BY r.emergencyType
ORDER BY reports DESC, r.emergencyType"""
        rows = await self._question(query)
        counts = Counter(one.emergency_type for one in self._world.reports)
        worst = {kind: max(r.severity for r in self._world.reports if r.emergency_type == kind) for kind in counts}
        expected = [
            {"emergencyType": kind, "reports": count, "worst": worst[kind]}
            for kind, count in sorted(counts.items(), key=lambda each: (-each[1], each[0]))
        ]
        self._check("counts by type", rows == expected)

    async def _near_ann(self) -> None:
        self._say("Ann walks on, a fire breaks out beside her, and she asks what is wrong where she is")
        now = datetime.now(UTC)
        ann = UserLocation("ann", data.near(self._rng, self._world.places["ann"].place, 300), now)
        fire = Report("fire", 7, data.near(self._rng, ann.place, 200), 400.0, now, "A roof is burning; keep away")
        self._world.places["ann"] = ann
        self._world.reports.append(fire)
        query = """SELECT e.report.emergencyType, e.report.severity, e.report.message
FROM emergenciesNearUser("ann") AS e
ORDER BY e.report.severity DESC"""
        change = f"""INSERT INTO Reports {data.report_text(fire)};
UPSERT INTO UserLocations {data.location_text(ann)};"""
        rows = await self._question(query, before=change)
        # The function looks back 10 seconds from a moment that lies between these two.
        earliest, latest = now - timedelta(seconds=10), datetime.now(UTC) - timedelta(seconds=10)
        told = Counter((row["emergencyType"], row["severity"], row["message"]) for row in rows)
        certain = self._around(ann, latest) if ann.timestamp > latest else Counter()
        self._check("what is wrong where Ann is", certain <= told <= self._around(ann, earliest))
        self._note("This function looks back 10 seconds. A channel runs it for all users at once: see below.")

        self._say("And everything of the last hour whose zone she is in now, nearest first")
        query = """SELECT r.emergencyType, r.severity,
       int(round(geo_distance(get_center(r.impactZone), l.place))) AS metres
FROM Reports AS r, UserLocations AS l
WHERE l.userName = "ann" AND geo_intersect(r.impactZone, l.place)
ORDER BY metres, r.severity"""
        rows = await self._question(query)
        around = sorted(
            (round(data.distance_m(one.center, ann.place)), one.severity, one.emergency_type)
            for one in self._world.reports
            if one.covers(ann.place)
        )
        self._check(
            "reports around Ann", [(row["metres"], row["severity"], row["emergencyType"]) for row in rows] == around
        )

    def _around(self, user: UserLocation, since: datetime) -> Counter[tuple[str, int, str]]:
        return Counter(
            (one.emergency_type, one.severity, one.message)
            for one in self._world.reports
            if one.timestamp > since and one.covers(user.place)
        )

    async def _shelters_in_zones(self) -> None:
        self._say("Where can people go? The open shelters inside each large and bad impact zone")
        self._note("`beds` and `open` are not declared in the type Shelter: open types keep and answer them.")
        query = """SELECT r.emergencyType, r.severity, shelters
FROM Reports AS r
LET shelters = (SELECT VALUE s.name FROM Shelters AS s
                WHERE s.open = true AND s.beds >= 50 AND geo_intersect(r.impactZone, s.location)
                ORDER BY s.name)
WHERE r.severity >= 9 AND get_radius(r.impactZone) > 2000
ORDER BY r.timestamp"""
        rows = await self._question(query)
        expected = [
            {
                "emergencyType": one.emergency_type,
                "severity": one.severity,
                "shelters": sorted(
                    s.name for s in self._world.shelters.values() if s.open and s.beds >= 50 and one.covers(s.location)
                ),
            }
            for one in self._world.reports
            if one.severity >= 9 and one.radius_m > 2000
        ]
        self._check("open shelters in each zone", rows == expected)

    # ------------------------------------------------------------ being told

    async def _subscriptions(self) -> None:
        self._say("Nobody wants to ask all the time. People subscribe to a channel, and are told")
        self._show(definition(NEAR))
        await self._ask(f"USE emergency;\n{definition('Town')}\n{definition(NEAR)}\n{definition(AT)}")
        people = Subscribers([self._world.places[name] for name in ("ann", "bo", "cleo")], data.WELLINGTON)
        self._show(people.statements())
        await self._ask(f"USE emergency;\n{people.statements()}")

        self._say("They go on telling where they are, and four reports come")
        began = datetime.now(UTC)
        seen = people.seen_at(began)
        reports = people.reports(began, lambda center, within_m: data.near(self._rng, center, within_m))
        await self._send("LocationFeed", map(data.location_json, seen))
        await self._send("ReportFeed", map(data.report_json, reports))
        self._world.places |= {one.user_name: one for one in seen}
        self._world.reports += reports
        expected = people.told(reports)
        at_home = people.told_at_home(reports, self._world.shelters.values())
        came_s = perf_counter()
        await self._until_told(NEAR, expected.total())
        await self._until_told(AT, 1)
        self._note(
            f"Everybody had been told when we asked, {perf_counter() - came_s:.1f} s after queries saw the reports."
        )

        rows = await self._question(ASKED)
        told = Counter((row["who"], row["told"], row["message"]) for row in rows)
        # The channel asks for users seen in the last minute, which a very slow machine may let pass.
        late = datetime.now(UTC) - began > timedelta(seconds=60)
        self._check("who was told of what", told == expected or (late and told < expected))
        rows = await self._question(ASKED_WITH_SHELTERS)
        self._check("what was told at home", rows == at_home)

    async def _send(self, feed: str, lines: Iterable[bytes]) -> None:
        await play(self._client, {feed: [(0.0, line) for line in lines]}, self._console, speed=1)

    async def _until_told(self, channel: str, count: int) -> None:
        deadline_s = perf_counter() + TOLD_LIMIT_S
        while perf_counter() < deadline_s:
            rows = await self._ask(f"USE emergency; SELECT VALUE count(*) FROM {channel}Results AS r;")
            if rows[0] >= count:
                return

    async def _changes(self) -> None:
        self._say("The largest shelter fills up and the smallest is given up. What changed since the first commit?")
        largest, smallest = self._by_beds()
        full = Shelter(largest.name, largest.location, 0, open=False)
        del self._world.shelters[smallest.name]
        self._world.shelters[full.name] = full
        place = f"create_point({full.location.latitude!r}, {full.location.longitude!r})"
        change = f"""UPSERT INTO Shelters {{"name": "{full.name}", "location": {place}, "beds": 0, "open": false}};
DELETE FROM Shelters AS s WHERE s.name = "{smallest.name}";"""
        query = """SELECT before.name, before.beds AS beds_before, after.beds AS beds_now
FROM Shelters VERSION AS OF 1 AS before
LEFT JOIN Shelters AS after ON before.name = after.name
WHERE after.beds IS UNKNOWN OR after.beds != before.beds
ORDER BY before.name"""
        rows = await self._question(query, before=change)
        expected = [
            {"name": largest.name, "beds_before": largest.beds, "beds_now": 0},
            {"name": smallest.name, "beds_before": smallest.beds},
        ]
        given = [{name: value for name, value in row.items() if value is not None} for row in rows]
        self._check("what changed", given == sorted(expected, key=lambda each: str(each["name"])))

    def _by_beds(self) -> tuple[Shelter, Shelter]:
        """The largest and the smallest of those that are open."""
        ordered = sorted((one.beds, one.name, one) for one in self._world.shelters.values() if one.open)
        return ordered[-1][-1], ordered[0][-1]

    async def _refusal(self) -> None:
        self._say("And a report that does not fit its type is refused, with the reason")
        statement = """INSERT INTO Reports {"emergencyType": "fire", "severity": "very bad"};"""
        self._show(statement)
        try:
            await self._ask(f"USE emergency;\n{statement}")
        except TocsinError as error:
            self._console.print(f"  refused: {error.message}", style="yellow")
            self._check("the refused report", error.code == "bad_statement")
        else:
            self._check("the refused report", False)

    # ------------------------------------------------------------ asking and showing

    async def _question(self, query: str, before: str = "") -> list[dict[str, Any]]:
        """The query's rows, shown with it. `before` is done first, in the same script."""
        self._show(query)
        began_s = perf_counter()
        rows = await self._ask(f"USE emergency;\n{before}\n{query};")
        self._console.print(table_of(rows))
        counted = "1 row" if len(rows) == 1 else f"{len(rows)} rows"
        self._console.print(f"  ({counted}, {perf_counter() - began_s:.1f} s)", style="dim")
        return rows

    async def _ask(self, script: str) -> list[Any]:
        async with contextlib.aclosing(self._client.run(script)) as events:
            return [event.value() async for event in events if isinstance(event, Row)]

    def _say(self, words: str) -> None:
        self._console.print()
        self._console.print(Text(words, style="bold"))

    def _note(self, words: str) -> None:
        self._console.print(Text(f"  {words}", style="italic"))

    def _show(self, statement: str) -> None:
        self._console.print(Text("\n".join(f"    {line}" for line in statement.splitlines()), style="cyan"))

    def _check(self, what: str, right: bool) -> None:
        if not right:
            self.wrong.append(what)
            self._console.print(f"  this is not what plain Python finds in the same data: {what}", style="bold red")


# ---------------------------------------------------------------- from beginning to end


async def demonstrate(folder: Path, console: Console, *, seed: int, speed: float) -> list[str]:
    """What was wrong; nothing if all went well."""
    console.print(Text("Starting a cluster: a `tocsin up` of its own, on a free port", style="bold"))
    async with Cluster(folder, console) as address, Client(address) as client:
        demo = Demo(client, console, seed, speed)
        await demo.run()
        console.print()
        console.print("Stopping the cluster …")
    return demo.wrong


@contextlib.asynccontextmanager
async def _stopped_by_sigterm() -> AsyncIterator[None]:
    """SIGTERM ends the block as Ctrl-C does, so that the cluster is stopped, too."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def _run(folder: Path, console: Console, *, seed: int, speed: float) -> list[str]:
    async with _stopped_by_sigterm():
        return await demonstrate(folder, console, seed=seed, speed=speed)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev demo", description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the data in this new folder")
    parser.add_argument("--seed", type=int, default=data.SEED, help="for other reports and other places")
    parser.add_argument("--speed", type=float, default=5.0, help="how fast the minute is played; 1 is real time")
    chosen = parser.parse_args(arguments)
    if not 0 < chosen.speed <= 1_000:
        parser.error("--speed must be more than 0 and at most 1000")
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    began_s = perf_counter()
    if chosen.keep is not None and chosen.keep.exists() and (not chosen.keep.is_dir() or any(chosen.keep.iterdir())):
        parser.error(f"{chosen.keep} is there already; --keep wants a new folder")
    try:
        with tempfile.TemporaryDirectory(prefix="tocsin-demo-") as temporary:
            folder = chosen.keep or Path(temporary) / "data"
            wrong = asyncio.run(_run(folder, console, seed=chosen.seed, speed=chosen.speed))
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("\nstopped; nothing is left running")
        return 130
    except (DemoError, TocsinError) as error:
        console.print(f"\n{error}", style="red")
        return 1
    console.print()
    if wrong:
        console.print(f"{len(wrong)} of the answers were wrong: {', '.join(wrong)}", style="bold red")
        return 1
    console.print(f"Every answer was checked against plain Python. Done in {perf_counter() - began_s:.0f} s.")
    console.print("Now try it yourself:")
    where = f" --data {chosen.keep}" if chosen.keep else ""
    console.print(f"  ./dev tocsin up{where}".ljust(52) + "in one terminal", markup=False)
    if not chosen.keep:
        console.print("  ./dev tocsin sql -f examples/emergency/schema.sql".ljust(52) + "in another", markup=False)
    console.print("  ./dev tocsin sql".ljust(52) + "a prompt; \\d lists the datasets", markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
