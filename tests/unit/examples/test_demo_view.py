"""What the demo shows, in a terminal and elsewhere."""

from __future__ import annotations

import argparse
import asyncio
import io
import re
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest
from rich.console import Console

from examples.emergency import data, view
from examples.emergency.auditor import History, Verdict
from examples.emergency.demo import channel_text, main, seconds
from examples.emergency.people import Person, lighthouse, townspeople
from tests.support.waiting import until
from tocsin.sdk import Cursor, Result


@pytest.fixture
def history() -> History:
    return History()


@pytest.fixture
def people(history: History) -> list[Person]:
    """Seventeen; half of them hear of a storm."""
    found = townspeople("http://127.0.0.1:1", 17, history, Random(1))
    storm = data.Report("storm", 9, data.WELLINGTON, 20_000.0, datetime.now(UTC), "Stay indoors")
    sent = history.report(storm, datetime.now(UTC).timestamp())
    result = {"report": data.report_record(storm, number=sent.number)}
    for i, person in enumerate(found[::2]):
        person.online_since_s = 0.0
        told = Result("emergency.NewEmergenciesNearUser", i, Cursor(1, 1, 0), datetime.now(UTC), result)
        # Every third was away, and heard of it two seconds after the return.
        returned_s = 0.0 if i % 3 else sent.sent_s + 8.0
        history.received(person.name, told, sent.sent_s + (0.5 if i % 3 else 10.0), returned_s)
    return found


@pytest.mark.parametrize("terminal", [True, False])
async def test_the_view_says_who_is_online_and_what_was_told(
    history: History, people: list[Person], terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")  # a dumb terminal shows no living picture
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100, height=40, color_system=None)
    running = asyncio.create_task(view.View(console, history, people, line_every_s=0.001).run())
    await until(lambda: "9 of 17 online" in out.getvalue())
    running.cancel()
    await asyncio.wait([running])
    assert "delivered 9 results" in out.getvalue()
    assert (f"{people[14].name}: storm of severity 9. Stay indoors" in out.getvalue()) == terminal
    assert ("●" in out.getvalue() and "·" in out.getvalue()) == terminal


def test_the_map_shows_each_cell_where_it_is() -> None:
    for row, column in ((0, 0), (17, 53), (9, 27)):
        assert view.cell_of(view.place_of(row, column)) == (row, column)


def test_the_table_at_the_end_says_what_was_lost(history: History, people: list[Person]) -> None:
    console = Console(file=io.StringIO(), record=True, width=100)
    console.print(view.table_of(history, Verdict(9, ["report 0 for ann"], [], 2), len(people), "0.750 of 12"))
    lines = (line.strip() for line in console.export_text().splitlines())
    told = dict(re.split(r" {2,}", line, maxsplit=1) for line in lines if line)
    assert told["lost"] == "1"
    assert told["delivered"] == "9 results, 3 of them to users who were offline when it was reported"
    assert told["latency, online"] == "0.50 s in the median, 0.50 s at the 99th percentile"
    assert told["latency, offline"] == "2.00 s in the median, 2.00 s at the 99th percentile, after the return"
    assert told["hit ratio"] == "0.750 of 12"


def test_every_channel_that_is_wished_for_is_one_of_the_example_and_watched_from_the_lighthouse(
    people: list[Person], history: History
) -> None:
    wished = {channel for person in people for channel, _ in person.wishes}
    assert wished == {channel for channel, _ in lighthouse("http://127.0.0.1:1", history).wishes}
    for name in wished:
        text = channel_text(name)
        assert text.startswith("CREATE ")
        assert text.count("CREATE") == 1
        assert f"CHANNEL {name}" in text
        assert text.endswith(";")


@pytest.mark.parametrize(("text", "told_s"), [("60s", 60), ("90", 90), ("1.5m", 90), ("2h", 7200)])
def test_how_long_it_lasts_is_said_as_people_say_it(text: str, told_s: float) -> None:
    assert seconds(text) == told_s


@pytest.mark.parametrize("text", ["", "soon", "0s", "-5s", "5 s", "5d"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        seconds(text)


def test_a_folder_that_holds_something_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(SystemExit):
        main(["--keep", str(tmp_path)])
    assert "exists already" in capsys.readouterr().err
