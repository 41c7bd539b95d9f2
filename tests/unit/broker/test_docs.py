"""docs/broker.md says what a broker does: its requests are sent to one, its metrics are those of the code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.support.in_process_broker import both
from tests.support.sparkless_cluster import world
from tocsin.rules.model import types as t

DOCUMENT = (Path(__file__).parents[3] / "docs" / "broker.md").read_text("utf-8")


async def test_the_requests_that_the_document_shows_are_answered(tmp_path: Path) -> None:
    shown = [
        line
        for block in re.findall(r"^```sh\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]
    assert len(shown) >= 9
    async with (
        world(tmp_path / "cluster") as here,
        both(tmp_path / "broker", here, delivery__wait_limit_s=0.05) as made,
    ):
        await here.channel("ReportsNear", t.POINT)
        token = ""
        for line in shown:
            words = shlex.split(line.replace("emergency.", "v.").replace("$TOKEN", token))
            options = {words[at]: words[at + 1] for at in range(1, len(words) - 1) if words[at].startswith("-")}
            (url,) = [word for word in words if word.startswith("http://127.0.0.1:8480")]
            data = options.get("--data-binary")
            method = options.get("-X", "GET" if data is None else "POST")
            headers = dict([options["-H"].split(": ")]) if "-H" in options else {}
            path = url.removeprefix("http://127.0.0.1:8480")
            status, said = await made.ask(method, path, data=None if data is None else data.encode(), headers=headers)
            assert status < 300, (line, said)
            token = said.get("token", token)


async def test_the_table_of_metrics_is_that_of_the_code(tmp_path: Path) -> None:
    async with world(tmp_path / "cluster") as here, both(tmp_path / "broker", here) as made:
        shown = (await made.ask("GET", "/metrics"))[1].decode()
    kept = dict(re.findall(r"^# HELP (tocsin_broker_\w+) (.*)$", shown, re.MULTILINE))
    told = dict(re.findall(r"^\| `(tocsin_broker_\w+)` \|[^|]*\| (.*) \|$", DOCUMENT, re.MULTILINE))
    assert told == kept
