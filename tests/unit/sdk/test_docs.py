"""What docs/sdk.md and README show for clients runs as it is written, against a broker in memory."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fake_broker import FakeBroker, listening
from tests.support.waiting import WITHIN_S
from tocsin import sdk
from tocsin.broker.http.openapi import document
from tocsin.cli.main import app

ROOT = Path(__file__).parents[3]
SDK = (ROOT / "docs" / "sdk.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")
URL = "http://127.0.0.1:8480"
SCHEMA = (ROOT / "examples" / "emergency" / "schema.sql").read_text("utf-8")
# Of the type that emergency.LocationFeed takes.
LOCATION_FIELDS = set(re.findall(r"(\w+):", re.findall(r"TYPE UserLocation .*?\{(.*?)\}", SCHEMA, re.DOTALL)[0]))


def programs() -> list[str]:
    return [
        code for text in (SDK, README) for code in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


@pytest.mark.parametrize("program", programs(), ids=[str(place) for place in range(len(programs()))])
async def test_a_program_of_the_documents_prints_what_comes(program: str) -> None:
    """The subscription ends after two results, and with it, once the rest was printed, what the program waits for."""
    assert URL in program
    broker = FakeBroker(passwords={} if "Manager(" in program else {"ann": "a good secret"})
    async with listening(broker):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-u", "-c", program.replace(URL, broker.url),
            stdout=subprocess.PIPE, env={"PYTHONPATH": str(ROOT / "src")},
        )  # fmt: skip
        assert process.stdout is not None
        try:
            async with asyncio.timeout(WITHIN_S):
                if "Manager(" in program:
                    assert await process.stdout.readline() == b"('ann', 'bob')\n"
                    return
                if "publish(" in program:
                    assert await process.stdout.readline() == b"1 ()\n"
                    feed, _, body = broker.published[0]
                    assert feed == "emergency.LocationFeed"
                    assert json.loads(body).keys() == LOCATION_FIELDS
                    return
                if ".subscribe(" not in program:
                    async with sdk.Client(broker.url, "ann", "a good secret") as client:
                        await client.subscribe("emergency.Alerts", [1])
                while not (broker.sockets and broker.interests):
                    await asyncio.sleep(0.005)
                for each in range(2):
                    broker.make(17, {"message": f"Stay indoors {each}"})
                    assert f"Stay indoors {each}".encode() in await process.stdout.readline()
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()


def test_the_readme_has_the_five_lines() -> None:
    five = programs()[0]
    assert five in README
    assert len([line for line in five.splitlines() if line.strip()]) <= 5


def test_every_method_of_the_clients_is_told_of() -> None:
    python, _, javascript = SDK.partition("## JavaScript")
    for kind in (sdk.Client, sdk.Manager):
        for name, _ in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_") and name not in ("close", "logout", "webhook", "remove_webhook"):
                assert f"{name}(" in python or f"`{name}`" in python, name
    source = Path(sdk.__file__).with_name("tocsin.js").read_text("utf-8")
    for name in re.findall(r"^  (?:async )?\*?(\w+)\([^)]*\) \{$", source, re.MULTILINE):
        if name not in ("constructor", "nextMs"):
            assert f"{name}(" in javascript, name


def test_every_request_that_a_broker_takes_has_a_method_or_a_reason() -> None:
    table = SDK.partition("## Which request is which method")[2].partition("\n## ")[0]
    told = {}
    for line in table.splitlines():
        if line.startswith("| `"):
            requests, python, javascript = [cell.strip() for cell in line.strip("|").split("|")]
            for request in re.findall(r"`(\w+ [^`]+)`", requests):
                told[request] = (python, javascript)
    taken = {f"{method.upper()} {path}" for path, methods in document()["paths"].items() for method in methods}
    assert told.keys() == taken
    source = Path(sdk.__file__).with_name("tocsin.js").read_text("utf-8")
    for python, javascript in told.values():
        for kind, name in re.findall(r"`(Client|Manager)\.(\w+)`", python):
            assert callable(getattr(getattr(sdk, kind), name))
        for name in re.findall(r"`(\w+)`", javascript):
            assert re.search(rf"^  (async )?\*?{name}\(", source, re.MULTILINE), name


def test_the_commands_of_the_document_are_there() -> None:
    assert {"subscribe", "subscriber"} <= set(app)
