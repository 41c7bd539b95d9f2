"""What README tells people to type is typed, in its order, and answers what README shows; and the example works.

A fenced `sh` block is a command, an `sql` block goes to `tocsin sql`; a `text` block right behind one is its output.
`./dev tocsin …` runs with the Python of the tests, so that no second environment is made.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import psutil  # type: ignore[import-untyped]
import pytest

from examples.emergency import data
from tests.local_cluster import LocalCluster

ROOT = Path(__file__).parents[2]
START_LIMIT_S = 120
ANSWER_LIMIT_S = 120

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_RATE = re.compile(r" \([\d,]+ records/s\)")
_TOCSIN = [sys.executable, "-P", "-c", "from tocsin.cli.main import main; main()"]
# Commands that are tested elsewhere: the demo below, and the tests by being run.
_ELSEWHERE = {"./dev demo", "./dev test"}


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
    for i, (kind, text, _, end) in enumerate(found):
        shown = found[i + 1] if i + 1 < len(found) and found[i + 1][2] == end + 1 else None
        if kind in ("sh", "sql") and text.strip() not in _ELSEWHERE:
            yield Step(kind, text.strip(), shown[1] if shown and shown[0] == "text" else None)


def environment(**more: str) -> dict[str, str]:
    """The caller's, without settings of ours that would change what is shown."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOCSIN_")}
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return {**kept, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **more}


class Terminal:
    """Where the commands are typed: at the root of the checkout, with the cluster's data and port out of the way."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._up: subprocess.Popen[str] | None = None
        self._url = ""

    def run(self, step: Step) -> str:
        """What the command printed; how fast it was is another number each time."""
        if step.arguments[0] == "up":
            return self._start(step.arguments)
        # All `sql` blocks are one session: from the second on, the dataverse in use is said again.
        again = step.kind == "sql" and not step.text.startswith("USE ")
        arguments = ["sql", "-e", f"USE emergency;\n{step.text}"] if again else step.arguments
        done = subprocess.run(
            [*_TOCSIN, *arguments], cwd=ROOT, env=environment(TOCSIN_URL=self._url), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=ANSWER_LIMIT_S, check=False,
        )  # fmt: skip
        said_of_use = done.stdout.partition("\n")[0] + "\n" if again else ""
        return _RATE.sub(" (… records/s)", done.stdout.removeprefix(said_of_use))

    def _start(self, arguments: list[str]) -> str:
        moved = [*arguments, "--data", str(self._data), "--port", "0"]
        self._up = subprocess.Popen([*_TOCSIN, *moved], cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True)
        assert self._up.stdout is not None
        line = self._up.stdout.readline()
        found = re.search(r"ready at (\S+)", line)
        assert found is not None, f"the cluster said {line!r}"
        self._url = found[1]
        return line.replace(self._url, "http://127.0.0.1:8470").replace(str(self._data), "tocsin-data")

    def close(self) -> int:
        if self._up is None:
            return 0
        self._up.send_signal(signal.SIGTERM)
        status = self._up.wait(START_LIMIT_S)
        assert self._up.stdout is not None
        self._up.stdout.close()
        return status


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
                shown = _RATE.sub(" (… records/s)", step.output)
                deadline_s = time.monotonic() + ANSWER_LIMIT_S
                # A moment later, README says: what a channel tells is there when it is.
                while "Results" in step.text and tidy(printed) != tidy(shown) and time.monotonic() < deadline_s:
                    printed = terminal.run(step)
                assert tidy(printed) == tidy(shown), f"README shows something else for:\n{step.text}\n\n{printed}"
            else:
                assert "error:" not in printed, f"{step.text}\n\n{printed}"
    finally:
        status = terminal.close()
    assert typed >= 8
    assert status == 0


def test_the_commands_that_are_tested_elsewhere_are_known_to_dev() -> None:
    known = (ROOT / "dev").read_text("utf-8")
    for command in _ELSEWHERE:
        assert f"\n    {command.removeprefix('./dev ')})\n" in known


@pytest.fixture
def demo() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.emergency.demo"], cwd=ROOT, env=environment(),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    yield process
    if process.poll() is None:
        process.terminate()
        process.wait(START_LIMIT_S)
    assert process.stdout is not None
    process.stdout.close()


def test_the_demo_answers_rightly_and_leaves_nothing_running(demo: subprocess.Popen[str]) -> None:
    printed, _ = demo.communicate(timeout=START_LIMIT_S + ANSWER_LIMIT_S)
    assert demo.returncode == 0, printed
    assert "Every answer was checked against plain Python." in printed
    assert "ReportFeed: 60 accepted, 1 rejected" in printed
    assert "LocationFeed: 3,000 accepted, 0 rejected" in printed


def test_a_demo_that_is_interrupted_while_spark_starts_stops_its_cluster(demo: subprocess.Popen[str]) -> None:
    assert demo.stdout is not None
    seen = ""
    while "Spark is starting" not in seen and " ready at " not in seen:
        line = demo.stdout.readline()
        assert line, seen
        seen += line
    started = psutil.Process(demo.pid).children(recursive=True)
    assert started
    demo.send_signal(signal.SIGINT)
    assert "nothing is left running" in demo.stdout.read()
    assert demo.wait(START_LIMIT_S) == 130
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []


# ---------------------------------------------------------------- the example's functions


def test_the_seven_functions_of_the_example_find_what_plain_python_finds(cluster: LocalCluster) -> None:
    """How far each looks back is held to its documentation elsewhere; here a record is far inside or far outside."""
    rng, now = Random(11), datetime.now(UTC)
    recent, old = now + timedelta(hours=1), now - timedelta(hours=1)
    reports = [replace(one, timestamp=rng.choice((recent, recent, old))) for one in data.reports(rng, 60, until=now)]
    places = [replace(one, timestamp=rng.choice((recent, recent, old))) for one in data.locations(rng, 12, at=now)]
    # Some reports beside people, so that there is something to find.
    reports += [replace(reports[i], center=one.place) for i, one in enumerate(places)]
    reports = [replace(one, message=f"report {i}") for i, one in enumerate(reports)]
    shelters, file = data.default_shelters(), ROOT / "examples/emergency/shelters.json"
    cluster.run((ROOT / "examples/emergency/schema.sql").read_text("utf-8"))
    try:
        cluster.run(
            f"""USE emergency;
            LOAD DATASET Shelters USING localfs (("path"="{file}"), ("format"="json"));
            INSERT INTO Reports {data.records([data.report_text(one) for one in reports])};
            UPSERT INTO UserLocations {data.records([data.location_text(one) for one in places])};"""
        )

        def found(call: str) -> dict[str, list[str] | None]:
            rows = cluster.rows(f"USE emergency; SELECT VALUE e FROM {call} AS e;")
            return {
                row["report"]["message"]: sorted(one["name"] for one in row["shelters"]) if "shelters" in row else None
                for row in rows
            }

        def expected(
            *, kind: str | None = None, at: data.Place | None = None, sheltered: bool = False
        ) -> dict[str, list[str] | None]:
            return {
                one.message: sorted(s.name for s in shelters if one.covers(s.location)) if sheltered else None
                for one in reports
                if one.timestamp == recent and kind in (None, one.emergency_type) and (at is None or one.covers(at))
            }

        ann, bo = places[0], places[1]
        kind = next(one.emergency_type for one in reports if one.covers(ann.place) and one.timestamp == recent)
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
