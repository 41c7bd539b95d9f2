"""`./dev demo`: a cluster, a broker and a simulated town that receives warnings, with an auditor.

Simulated users move, publish their location, go offline and return; an agency reports emergencies. At the end the
auditor compares the received results with the required ones: the exit status is 0 only if no result was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from time import perf_counter, time
from typing import Any

import aiohttp
from rich.console import Console
from rich.text import Text

from examples.emergency import data
from examples.emergency.auditor import LATE_S, History, Verdict, channel_of, judge
from examples.emergency.own_cluster import DemoError, Servers
from examples.emergency.people import Agency, Person, lighthouse, passed, townspeople
from examples.emergency.view import View, table_of
from tocsin.cli.client import ClusterConnection
from tocsin.wire.errors import TocsinError

HERE = Path(__file__).parent
_AT_ONCE = 16
_LOOK_EVERY_S = 0.2
_FLARE_LIMIT_S = 60.0
_QUIET_S = 0.7


class Demo:
    def __init__(self, console: Console, *, users: int, lasts_s: float, seed: int) -> None:
        self._console = console
        self._users = users
        self._lasts_s = lasts_s
        self._rng = Random(seed)
        self._history = History(data.default_shelters())
        self._stop = asyncio.Event()
        self._task = asyncio.current_task()
        self._running = False

    def interrupt(self) -> None:
        """Stops when all results have arrived; at once if it is called again, or before the users are online."""
        if self._running and not self._stop.is_set():
            self._stop.set()
        elif self._task is not None:
            self._task.cancel()

    async def run(self, folder: Path) -> bool:
        """Runs the demo. Returns whether the auditor found no error."""
        self._say("Starting a cluster and a broker, on free ports")
        async with Servers(folder, self._console) as at, asyncio.TaskGroup() as tasks:
            people = townspeople(at.broker, self._users, self._history, self._rng)
            keeper = lighthouse(at.broker, self._history)
            agency = Agency(at.broker, self._history, self._rng)
            running = [tasks.create_task(at.ended())]
            self._say(f"Creating the schema and the channels, while {self._users} users register")
            async with asyncio.TaskGroup() as meanwhile:
                meanwhile.create_task(self._register(people))
                await self._create(at.cluster, [channel for channel, _ in keeper.wishes])
                await keeper.register()
                await keeper.subscribe()
                running.append(tasks.create_task(keeper.live(self._stop)))
                await self._first_flare(agency)
            await self._subscribe(people)
            self._running = True
            self._say(
                f"Users move, go offline and return, and emergencies happen: for {self._lasts_s:g} s, or until Ctrl-C"
            )
            view = View(self._console, self._history, people)
            running += [tasks.create_task(person.live(self._stop)) for person in people]
            running.append(tasks.create_task(view.run()))
            reporting = tasks.create_task(agency.report(self._stop))
            await passed(self._stop, self._lasts_s)
            self._stop.set()
            view.phase = "all users are online and receive the rest"
            await reporting
            verdict = await self._wait_for_verdict()
            hit_ratio = await _hit_ratio(at.broker)
            for task in running:
                task.cancel()
        self._console.print(table_of(self._history, verdict, len(people), hit_ratio))
        for line in [*verdict.lost, *verdict.wrong][:20]:
            self._console.print(f"  {line}", style="red", markup=False)
        return verdict.good

    async def _create(self, cluster: str, channels: Iterable[str]) -> None:
        began_s = perf_counter()
        shelters = str((HERE / "shelters.json").resolve())
        script = "\n".join(
            [
                (HERE / "schema.sql").read_text("utf-8"),
                f'LOAD DATASET Shelters USING localfs (("path"="localhost://{shelters}"), ("format"="json"));',
                "CONNECT FEED ReportFeed TO DATASET Reports; START FEED ReportFeed;",
                "CONNECT FEED LocationFeed TO DATASET UserLocations; START FEED LocationFeed;",
                *map(channel_text, channels),
            ]
        )
        async with ClusterConnection(cluster) as client, contextlib.aclosing(client.run(script)) as events:
            async for _ in events:
                pass
        self._note(f"created after {perf_counter() - began_s:.1f} s")

    async def _register(self, people: Sequence[Person]) -> None:
        began_s = perf_counter()
        await _all(person.register() for person in people)
        self._note(f"registered after {perf_counter() - began_s:.1f} s")

    async def _first_flare(self, agency: Agency) -> None:
        """Returns when all continuous channels have delivered a flare: first executions take longer."""
        history = self._history
        await agency.fire()
        fired_s = history.reports[0].sent_s
        continuous = {watch.channel for watch in history.watches.values() if watch.rule.window_s is None}
        while not continuous <= {channel_of(heard) for heard in history.heard} and time() - fired_s < _FLARE_LIMIT_S:
            await asyncio.sleep(_LOOK_EVERY_S)
        first_s = min((heard.at_s for heard in history.heard), default=time()) - fired_s
        self._note(f"first flare delivered after {first_s:.1f} s, by all channels after {time() - fired_s:.1f} s")

    async def _subscribe(self, people: Sequence[Person]) -> None:
        began_s = perf_counter()
        await _all(person.subscribe() for person in people)
        interests = {interest for _, interest in self._history.watches}
        self._note(
            f"{len(self._history.watches):,} subscriptions to {len(interests):,} interests "
            f"in {perf_counter() - began_s:.1f} s"
        )

    async def _wait_for_verdict(self) -> Verdict:
        """Returns the verdict when all required results have arrived, or none has arrived for long."""
        heard, verdict = self._history.heard, None
        count, since_s = -1, time()
        while verdict is None or not (verdict.good or time() - since_s > LATE_S):
            await asyncio.sleep(_QUIET_S)
            if count != len(heard):
                count, since_s, verdict = len(heard), time(), None
            elif verdict is None:
                verdict = judge(self._history)
        return verdict

    def _say(self, words: str) -> None:
        self._console.print(Text(words, style="bold"))

    def _note(self, words: str) -> None:
        self._console.print(Text(f"  {words}"))


def channel_text(name: str) -> str:
    """Returns the statement of channels.sql that creates the channel."""
    script = (HERE / "channels.sql").read_text("utf-8")
    pattern = rf"^CREATE (REPETITIVE CHANNEL {name}\b[^;]*|CONTINUOUS CHANNEL {name}\(.*?^}});"
    match = re.search(pattern, script, re.MULTILINE | re.DOTALL)
    assert match is not None, name
    return match[0]


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs a few at a time."""
    few = asyncio.Semaphore(_AT_ONCE)

    async def run(job: Coroutine[Any, Any, None]) -> None:
        async with few:
            await job

    async with asyncio.TaskGroup() as tasks:
        for job in work:
            tasks.create_task(run(job))


async def _hit_ratio(broker: str) -> str:
    """Returns the broker's own figure: the share of the results requested later that were in its cache."""
    async with aiohttp.ClientSession() as session, session.get(f"{broker}/metrics") as answer:
        text = await answer.text()
    hits, misses = (
        sum(float(value) for value in re.findall(rf"^tocsin_broker_{name}_total{{.*}} (\S+)$", text, re.MULTILINE))
        for name in ("hits", "misses")
    )
    return f"{hits / (hits + misses):.3f} of {hits + misses:,.0f}" if hits + misses else "no result was requested"


# ---------------------------------------------------------------- from beginning to end


@contextlib.contextmanager
def _signals(interrupted: Callable[[], None]) -> Iterator[None]:
    loop, signals = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for signal_number in signals:
        loop.add_signal_handler(signal_number, interrupted)
    try:
        yield
    finally:
        for signal_number in signals:
            loop.remove_signal_handler(signal_number)


async def _run(folder: Path, console: Console, *, users: int, lasts_s: float, seed: int) -> bool:
    demo = Demo(console, users=users, lasts_s=lasts_s, seed=seed)
    with _signals(demo.interrupt):
        return await demo.run(folder)


def seconds(text: str) -> float:
    """Parses `90`, `90s`, `5m` or `1h`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h)?", text)
    if match is None or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 60s or 5m")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2] or "s"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev demo", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--for", dest="lasts_s", type=seconds, default=60.0, metavar="TIME", help="such as 60s (the default) or 5m"
    )
    parser.add_argument("--users", type=int, default=250, help="the number of users (250)")
    parser.add_argument("--seed", type=int, default=data.SEED, help="the seed of emergencies and users")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the data in this new folder")
    chosen = parser.parse_args(arguments)
    if not 1 <= chosen.users <= 2_000:
        parser.error("--users must be from 1 to 2000")
    if chosen.keep is not None and chosen.keep.exists() and (not chosen.keep.is_dir() or any(chosen.keep.iterdir())):
        parser.error(f"{chosen.keep} exists already; --keep needs a new folder")
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    began_s = perf_counter()
    try:
        with tempfile.TemporaryDirectory(prefix="tocsin-demo-") as temporary:
            folder = chosen.keep or Path(temporary) / "data"
            good = asyncio.run(_run(folder, console, users=chosen.users, lasts_s=chosen.lasts_s, seed=chosen.seed))
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("\nstopped; nothing is left running")
        return 130
    except (DemoError, TocsinError) as error:
        console.print(f"\n{error}", style="red")
        return 1
    except BaseExceptionGroup as group:
        console.print(f"\n{_first(group)}", style="red")
        return 1
    if not good:
        console.print("Results were lost or wrong: see above.", style="bold red")
        return 1
    console.print(f"Nothing was lost, by the results that users received. Done in {perf_counter() - began_s:.0f} s.")
    return 0


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


if __name__ == "__main__":
    sys.exit(main())
