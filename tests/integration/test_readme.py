"""What README tells people to type is typed, in its order, and answers what README shows; and the example works.

A fenced `sh` block is a command, an `sql` block goes to `tocsin sql`; a `text` block right behind one is its output,
and one by itself is what the subscriber in the other terminal prints next.
`./dev tocsin …` runs with the Python of the tests, so that no second environment is made.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import psutil  # type: ignore[import-untyped]
import pytest

from examples.emergency import data
from tests.support.in_process_cluster import LocalCluster
from tests.support.waiting import WITHIN_S

ROOT = Path(__file__).parents[2]
START_LIMIT_S = WITHIN_S
ANSWER_LIMIT_S = WITHIN_S

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EACH_TIME = (
    (re.compile(r" \([\d,]+ records/s\)"), " (… records/s)"),
    (re.compile(r"\(sub_\w[\w-]+\)"), "(sub_…)"),
    (re.compile(r"^\d\d:\d\d:\d\d  "), "…  "),
)
_TOCSIN = [sys.executable, "-P", "-c", "from tocsin.cli.main import main; main()"]
# Commands that are tested elsewhere: the demo below, and the tests by being run.
_ELSEWHERE = {"./dev demo", "./dev test", "./dev test --all"}


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to type, and what it prints if README shows it."""

    kind: str
    text: str
    output: str | None

    @property
    def arguments(self) -> list[str]:
        """Of `tocsin`."""
        if self.kind == "sql":
            return ["sql", "-e", self.text]
        command = shlex.split(self.text)
        assert command[:2] == ["./dev", "tocsin"], f"README has a command that no test runs: {self.text}"
        return command[2:]


def steps(document: str) -> Iterator[Step]:
    found = [(match[1], match[2], match.start(), match.end()) for match in _BLOCK.finditer(document)]
    ends = {end + 1 for _, _, _, end in found}
    for i, (kind, text, start, end) in enumerate(found):
        shown = found[i + 1] if i + 1 < len(found) and found[i + 1][2] == end + 1 else None
        if kind in ("sh", "sql") and text.strip() not in _ELSEWHERE:
            yield Step(kind, text.strip(), shown[1] if shown and shown[0] == "text" else None)
        elif kind == "text" and start not in ends:
            yield Step("heard", "", text)


def environment(**more: str) -> dict[str, str]:
    """The caller's, without settings of ours that would change what is shown."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOCSIN_")}
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    # A life of seconds does not repay what Java's second compiler costs.
    java = "-XX:TieredStopAtLevel=1"
    return {**kept, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "JAVA_TOOL_OPTIONS": java, **more}


class Terminal:
    """Where the commands are typed: at the root of the checkout, with data and ports out of the way."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._running: list[subprocess.Popen[str]] = []
        self._addresses = {"TOCSIN_URL": "", "TOCSIN_BROKER_URL": ""}

    def run(self, step: Step) -> str:
        """What the command printed, without what is different each time: how fast it was, when, ids."""
        if step.kind == "heard":
            return same(self._line())
        if step.arguments[0] == "up":
            return self._start(step.arguments)
        variables = {**self._addresses, "TOCSIN_PASSWORD": "a good secret"}
        if step.arguments[0] == "subscribe":
            self._leave_running(step.arguments, variables)
            return same(self._line())
        # All `sql` blocks are one session: from the second on, the dataverse in use is said again.
        again = step.kind == "sql" and not step.text.startswith("USE ")
        arguments = ["sql", "-e", f"USE emergency;\n{step.text}"] if again else step.arguments
        done = subprocess.run(
            [*_TOCSIN, *arguments], cwd=ROOT, env=environment(**variables), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=ANSWER_LIMIT_S, check=False,
        )  # fmt: skip
        said_of_use = done.stdout.partition("\n")[0] + "\n" if again else ""
        return same(done.stdout.removeprefix(said_of_use))

    def _start(self, arguments: list[str]) -> str:
        moved = [*arguments, "--data", str(self._data), "--port", "0"]
        self._leave_running(moved, {"TOCSIN_BROKER__HTTP__PORT": "0"}, stderr=None)
        said = ""
        for variable, shown in (
            ("TOCSIN_URL", "http://127.0.0.1:8470"),
            ("TOCSIN_BROKER_URL", "http://127.0.0.1:8480"),
        ):
            line = self._line()
            found = re.search(r"ready at (\S+)", line)
            assert found is not None, f"the cluster said {line!r}"
            self._addresses[variable] = found[1]
            said += line.replace(found[1], shown).replace(str(self._data), "tocsin-data")
        return said

    def _leave_running(
        self, arguments: list[str], variables: dict[str, str], stderr: int | None = subprocess.STDOUT
    ) -> None:
        process = subprocess.Popen(
            [*_TOCSIN, *arguments],
            cwd=ROOT,
            env=environment(**variables),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        self._running.append(process)

    def _line(self) -> str:
        """The next one of what was started last."""
        process = self._running[-1]
        assert process.stdout is not None
        given_up = threading.Timer(ANSWER_LIMIT_S, process.kill)
        given_up.start()
        try:
            return process.stdout.readline()
        finally:
            given_up.cancel()

    def close(self) -> list[int]:
        """With which statuses those ended that ran, the last one first."""
        statuses = []
        for process in reversed(self._running):
            process.send_signal(signal.SIGTERM)
            statuses.append(process.wait(START_LIMIT_S))
            assert process.stdout is not None
            process.stdout.close()
        return statuses


def same(printed: str) -> str:
    """Without what is different each time."""
    for pattern, shown in _EACH_TIME:
        printed = pattern.sub(shown, printed)
    return printed


def tidy(text: str) -> list[str]:
    """Lines without what follows the last character that can be seen."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


def test_every_command_of_the_readme_prints_what_the_readme_shows(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path / "data")
    typed = 0
    try:
        for step in steps((ROOT / "README.md").read_text("utf-8")):
            printed = terminal.run(step)
            typed += 1
            if step.output is not None:
                shown = tidy(same(step.output))
                assert tidy(printed) == shown, f"README shows something else for:\n{step.text}\n\n{printed}"
            else:
                assert "error:" not in printed, f"{step.text}\n\n{printed}"
    finally:
        statuses = terminal.close()
    assert typed >= 8
    assert statuses == [0, 0], "the subscriber and the servers"


def test_the_commands_that_are_tested_elsewhere_are_known_to_dev() -> None:
    known = (ROOT / "dev").read_text("utf-8")
    for command in _ELSEWHERE:
        name, *options = command.removeprefix("./dev ").split()
        assert f"\n    {name})\n" in known
        assert all(f" {option}) " in known for option in options)


@pytest.fixture
def demo() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.emergency.demo", "--for", "10m", "--users", "30"], cwd=ROOT, env=environment(),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    yield process
    if process.poll() is None:
        process.terminate()
        process.wait(START_LIMIT_S)
    assert process.stdout is not None
    process.stdout.close()


def read_until(process: subprocess.Popen[str], holds: Callable[[str], bool]) -> str:
    """All lines up to the first for which it holds."""
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if holds(line):
            return seen
    raise AssertionError(f"the demo ended:\n{seen}")


def delivered(line: str) -> int:
    found = re.search(r"delivered ([\d,]+) results", line)
    return int(found[1].replace(",", "")) if found else 0


def is_broker(process: psutil.Process) -> bool:
    try:
        return "broker" in process.cmdline()
    except psutil.Error:  # It has ended meanwhile.
        return False


def test_the_demo_loses_nothing_though_its_broker_is_killed_and_somebody_presses_ctrl_c(
    demo: subprocess.Popen[str],
) -> None:
    assert demo.stdout is not None
    seen = read_until(demo, lambda line: delivered(line) >= 10)
    started = psutil.Process(demo.pid).children(recursive=True)
    next(process for process in started if is_broker(process)).kill()
    before = delivered(seen.splitlines()[-1])
    seen += read_until(demo, lambda line: delivered(line) >= before + 10)
    demo.send_signal(signal.SIGINT)
    seen += demo.stdout.read()
    assert demo.wait(START_LIMIT_S) == 0, seen
    assert re.search(r"^ *lost +0 *$", seen, re.MULTILINE), seen
    assert re.search(r"^ *required +[1-9]", seen, re.MULTILINE), seen
    assert "Nothing was lost" in seen
    _, alive = psutil.wait_procs(started, timeout=WITHIN_S)
    assert alive == []


def test_a_demo_that_is_interrupted_while_spark_starts_stops_its_cluster(demo: subprocess.Popen[str]) -> None:
    assert demo.stdout is not None
    read_until(demo, lambda line: "Spark is starting" in line or " ready at " in line)
    started = psutil.Process(demo.pid).children(recursive=True)
    assert started
    demo.send_signal(signal.SIGINT)
    assert "nothing is left running" in demo.stdout.read()
    assert demo.wait(START_LIMIT_S) == 130
    _, alive = psutil.wait_procs(started, timeout=WITHIN_S)
    assert alive == []


# ---------------------------------------------------------------- the example's functions


def test_the_seven_functions_of_the_example_find_what_plain_python_finds(cluster: LocalCluster) -> None:
    """How far each looks back is held to its documentation elsewhere; here a record is far inside or far outside."""
    rng, now = Random(11), datetime.now(UTC)
    recent, old = now + timedelta(hours=1), now - timedelta(hours=1)
    reports = [
        replace(report, timestamp=rng.choice((recent, recent, old))) for report in data.reports(rng, 60, until=now)
    ]
    places = [
        replace(location, timestamp=rng.choice((recent, recent, old))) for location in data.locations(rng, 12, at=now)
    ]
    # Some reports beside people, so that there is something to find.
    reports += [replace(reports[i], center=place.place) for i, place in enumerate(places)]
    reports = [replace(item, message=f"report {i}") for i, item in enumerate(reports)]
    shelters, file = data.default_shelters(), ROOT / "examples/emergency/shelters.json"
    cluster.run((ROOT / "examples/emergency/schema.sql").read_text("utf-8"))
    try:
        cluster.run(
            f"""USE emergency;
            LOAD DATASET Shelters USING localfs (("path"="{file}"), ("format"="json"));
            INSERT INTO Reports {data.records([data.report_text(report) for report in reports])};
            UPSERT INTO UserLocations {data.records([data.location_text(place) for place in places])};"""
        )

        def found(call: str) -> dict[str, list[str] | None]:
            rows = cluster.rows(f"USE emergency; SELECT VALUE e FROM {call} AS e;")
            return {
                row["report"]["message"]: sorted(shelter["name"] for shelter in row["shelters"])
                if "shelters" in row
                else None
                for row in rows
            }

        def expected(
            *, kind: str | None = None, at: data.Place | None = None, sheltered: bool = False
        ) -> dict[str, list[str] | None]:
            return {
                report.message: sorted(s.name for s in shelters if report.covers(s.location)) if sheltered else None
                for report in reports
                if report.timestamp == recent
                and kind in (None, report.emergency_type)
                and (at is None or report.covers(at))
            }

        ann, bo = places[0], places[1]
        kind = next(
            report.emergency_type for report in reports if report.covers(ann.place) and report.timestamp == recent
        )
        spot = f"{ann.place.latitude!r}, {ann.place.longitude!r}"
        assert found(f'emergenciesOfType("{kind}")') == expected(kind=kind)
        assert found(f"emergenciesAt({spot})") == expected(at=ann.place)
        assert found(f'emergenciesOfTypeAt("{kind}", {spot})') == expected(kind=kind, at=ann.place)
        found_with_shelters = found(f'emergenciesOfTypeAtWithShelters("{kind}", {spot})')
        assert found_with_shelters == expected(kind=kind, at=ann.place, sheltered=True)
        assert found_with_shelters
        for user in (ann, bo):
            name, near = user.user_name, user.place if user.timestamp == recent else data.Place(0, 0)
            assert found(f'emergenciesNearUser("{name}")') == expected(at=near)
            assert found(f'emergenciesOfTypeNearUser("{kind}", "{name}")') == expected(kind=kind, at=near)
            found_near = found(f'emergenciesOfTypeNearUserWithShelters("{kind}", "{name}")')
            assert found_near == expected(kind=kind, at=near, sheltered=True)
        assert found('emergenciesNearUser("nobody")') == {}
    finally:
        cluster.run("DROP DATAVERSE emergency;")
