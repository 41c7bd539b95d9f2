"""`tocsin sql` against a real server with an executor that only pretends."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from tests.support.fake_cluster import FakeStatements, serving, serving_beside
from tests.support.waiting import WITHIN_S
from tocsin.cli.client import ClusterConnection, NoClusterError, RowReceived, StatementDone
from tocsin.cli.commands.sql import Shell, interact, run_interruptibly
from tocsin.cli.main import main
from tocsin.cli.output import JsonPrinter, TablePrinter, print_error, safe
from tocsin.cli.prompt import NameCompleter, history_file, is_complete, prompt_session
from tocsin.wire.errors import StatementError


@pytest.fixture(scope="module", autouse=True)
def quiet_server() -> Iterator[None]:
    """The server runs in this process: its log must not stand between what the command prints."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="module")
def url(quiet_server: None) -> Iterator[str]:
    with serving_beside() as address:
        yield address


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["sql", *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_a_table_shows_columns_rows_and_what_statements_did(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = 'insert 3; json [{"a": 1, "b": "x"}, {"b": null, "c": [1, {"d": 2}]}]'
    assert run("--url", url, "-e", script) == 0
    out, err = capsys.readouterr()
    rows = [line.split() for line in out.splitlines()]
    assert rows[0] == ["insert:", "inserted", "3"]
    assert rows[1] == ["a", "b", "c"]
    assert rows[3:] == [["1", "x"], ["null", "[1,", '{"d":', "2}]"], ["(2", "rows)"]]
    assert err == ""


def test_json_prints_each_row_as_it_came(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--url", url, "--format", "json", "-e", 'insert 1; json [{"a": 1.50}, "x", null]; rows 2500') == 0
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert lines[:3] == [{"a": 1.5}, "x", None]
    assert len(lines) == 2_503
    assert err == "insert: inserted 1\n"


def test_csv_has_a_header_and_quotes_what_needs_it(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = 'json [{"a": "x,\\"y\\"\\n", "b": [1]}, {"a": null, "c": true}]'
    assert run("--url", url, "--format", "csv", "-e", script) == 0
    records = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert records == [["a", "b", "c"], ['x,"y"\n', "[1]", ""], ["", "", "true"]]


def test_csv_refuses_a_late_field_rather_than_losing_it(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.dumps([{"a": 1}] * 1_000 + [{"a": 1, "late": 2}])
    assert run("--url", url, "--format", "csv", "-e", f"json {rows}") == 1
    assert "row 1001 has the field 'late'" in capsys.readouterr().err


def test_an_error_shows_the_line_and_a_caret_and_exits_with_1(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--url", url, "-e", "rows 1;\nfail here;\ninsert 1") == 1
    out, err = capsys.readouterr()
    assert "(1 row)" in out
    assert err.splitlines() == [
        "error: line 2, column 1: fail is not a statement",
        "    2 | fail here;",
        "      | ^",
        "hint: write another",
    ]


def test_a_caret_stands_under_its_character_whatever_comes_before() -> None:
    err = io.StringIO()
    print_error(StatementError("bad", line=1, column=5), "\t日本 x", err)
    line, caret = err.getvalue().splitlines()[1:]
    assert line == "    1 |  日本 x"
    assert caret.index("^") == line.index("x") + 2  # Two characters before it are two cells wide.


def test_nothing_in_data_or_messages_takes_control_of_the_terminal() -> None:
    assert safe("a\x1b[31mb\x07\u202ec") == "a\\x1b[31mb\\x07\\u202ec"
    out = io.StringIO()
    printer = TablePrinter(out)
    printer.row(RowReceived(1, json.dumps({"[red]x\x1b": "[bold]y\x1b[0m"}).encode()))
    printer.print_outcome(StatementDone(1, "query", {"rows": 1}))
    assert "\x1b" not in out.getvalue()
    assert "[bold]y" in out.getvalue()


def test_a_script_comes_from_a_file_or_a_pipe(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "script.sql"
    file.write_text("insert 5", "utf-8-sig")
    assert run("--url", url, "-f", str(file)) == 0
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"insert 6")))
    assert run("--url", url) == 0
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"insert 7")))
    assert run("--url", url, "-f", "-") == 0
    assert capsys.readouterr().out.split() == "insert: inserted 5 insert: inserted 6 insert: inserted 7".split()
    file.write_bytes(b"\xff")
    assert run("--url", url, "-f", str(file)) == 1
    assert run("--url", url, "-f", str(tmp_path / "none")) == 1
    assert run("--url", url, "-f", str(file), "-e", "insert 1") == 1
    assert "Traceback" not in capsys.readouterr().err


def test_without_a_cluster_it_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--url", "http://127.0.0.1:9", "-e", "insert 1") == 2
    assert capsys.readouterr().err == ('error: no cluster answers at http://127.0.0.1:9: start one with "tocsin up"\n')
    assert run("--url", "not an address", "-e", "insert 1") != 0


def test_the_address_and_the_token_come_from_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving_beside(auth="on") as address:
        monkeypatch.setenv("TOCSIN_URL", address)
        assert run("-e", "insert 1") == 1
        assert "token" in capsys.readouterr().err
        monkeypatch.setenv("TOCSIN_TOKEN", "tocsin_bob")
        assert run("-e", "insert 1") == 0
        assert run("-e", "insert 1", "--token", "tocsin_nobody") == 1
        assert run("-e", "insert 1", "--token", "é") == 1


def test_a_timeout_is_passed_on(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--url", url, "--timeout", "0.05", "-e", "wait") == 1
    assert "within 0.05 s" in capsys.readouterr().err


async def test_leaving_early_cancels_the_script() -> None:
    fake = FakeStatements()
    async with serving(fake) as address, ClusterConnection(address) as client:
        events = client.run("endless")
        assert isinstance(await anext(events), RowReceived)
        await events.aclose()
        await fake.until(lambda it: it.stopped == 1)
        waiting = asyncio.create_task(anext(client.run("wait")))
        await fake.until(lambda it: it.waiting == 1)
        waiting.cancel()
        await fake.until(lambda it: it.stopped == 2)
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_a_server_that_is_no_cluster_is_told_apart() -> None:
    async def other(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(other, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with ClusterConnection(f"127.0.0.1:{port}") as client:
            with pytest.raises(NoClusterError, match="is not a Tocsin cluster"):
                await anext(client.run("insert 1"))


async def test_the_dataverse_in_use_is_kept_between_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeStatements()
    out = io.StringIO()
    async with serving(fake) as address, ClusterConnection(address) as client:
        shell = Shell(client, JsonPrinter(out, sys.stderr))
        assert await shell.run("use emergency;") == 0
        assert await shell.run("rows 1;") == 0
        assert await shell.run("insert 1;\nfail;") == 1
    assert fake.scripts == ["use emergency;", "USE `emergency`;\nrows 1;", "USE `emergency`;\ninsert 1;\nfail;"]
    err = capsys.readouterr().err
    assert "line 2, column 1" in err
    assert "    2 | fail;" in err
    assert err.count("use:") == 1


async def test_a_dataverse_that_is_gone_is_forgotten() -> None:
    fake = FakeStatements()
    async with serving(fake) as address, ClusterConnection(address) as client:
        shell = Shell(client, JsonPrinter(io.StringIO(), io.StringIO()))
        assert await shell.run("use x;") == 0
        fake.dropped.add("x")
        assert await shell.run("insert 1;") == 0
    assert fake.scripts == ["use x;", "USE `x`;\ninsert 1;", "insert 1;"]


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("select 1;", True),
        ("select 1", False),
        ("  ", True),
        ("\\q", True),
        ("select ';", False),
        ("select ';'", False),
        ("select 'it''s';", True),
        ('select "\\";', False),
        ('select "\\"";', True),
        ("select `a;`;", True),
        ("select 1; -- done;", True),
        ("select 1 -- not;", False),
        ("select 1 // not;", False),
        ("select 1 /* not;", False),
        ("select 1 /* ; */;", True),
        ("select 1; /* unfinished", False),
        ("create function f() { select 1;", False),
        ("create function f() { select 1; };", True),
        ("select '{';", True),
    ],
)
def test_enter_knows_whether_a_statement_is_complete(text: str, complete: bool) -> None:
    assert is_complete(text) is complete


def test_completion_offers_names_and_keywords_in_the_case_that_was_begun() -> None:
    completer = NameCompleter()
    completer.names = ["Selections", "Reports"]

    def offered(text: str) -> list[str]:
        return [completion.text for completion in completer.get_completions(Document(text), CompleteEvent())]

    assert offered("sel") == ["Selections", "select"]
    assert offered("SEL") == ["Selections", "SELECT"]
    assert offered("select * from repo") == ["Reports"]
    assert offered("select ") == []


async def test_the_prompt_takes_several_lines_and_remembers_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with create_pipe_input() as keyboard:
        session = prompt_session(NameCompleter(), keyboard=keyboard, screen=DummyOutput())
        keyboard.send_text("select\r1;\r")
        async with asyncio.timeout(WITHIN_S):
            assert await session.prompt_async() == "select\n1;"
    assert "+select\n+1;" in history_file().read_text()
    assert history_file().stat().st_mode & 0o077 == 0


async def test_ctrl_c_in_a_running_script_ends_it_in_the_cluster_too() -> None:
    fake = FakeStatements()
    async with serving(fake) as address:
        # Where the tests were started in the background, Ctrl-C is ignored, and so it would be in what they start.
        hears = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
        code = f"{hears}; from tocsin.cli.main import main; main()"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, "sql", "--url", address, "-e", "wait",
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        await fake.until(lambda it: it.waiting == 1)
        process.send_signal(signal.SIGINT)
        _, err = await process.communicate()
        assert process.returncode == 130
        assert b"Traceback" not in err
        await fake.until(lambda it: it.stopped == 1)


async def test_the_prompt_runs_statements_and_its_own_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    fake = FakeStatements()
    with create_pipe_input() as keyboard, create_app_session(input=keyboard, output=DummyOutput()):
        async with serving(fake) as address, ClusterConnection(address) as client:
            keyboard.send_text("use x;\rinsert\r4;\r\\d\r\\?\r\\nothing\r\x03fail;\r\\q\r")
            async with asyncio.timeout(WITHIN_S):
                assert await interact(Shell(client, JsonPrinter(io.StringIO(), sys.stderr))) == 0
    assert "USE `x`;\ninsert\n4;" in fake.scripts
    assert any("Metadata.`Dataset`" in script for script in fake.scripts)
    out, err = capsys.readouterr()
    assert "\\d   list the datasets" in out
    assert "unknown command \\nothing" in out
    assert "fail is not a statement" in err


async def test_ctrl_c_cancels_what_runs_and_leaves_the_prompt_alive(capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeStatements()
    async with serving(fake) as address, ClusterConnection(address) as client:
        shell = Shell(client, JsonPrinter(io.StringIO(), sys.stderr))
        running = asyncio.create_task(run_interruptibly(shell, "wait"))
        await fake.until(lambda it: it.waiting == 1)
        os.kill(os.getpid(), signal.SIGINT)
        assert await running == 130
        await fake.until(lambda it: it.stopped == 1)
        assert await run_interruptibly(shell, "rows 1") == 0
    assert "cancelled" in capsys.readouterr().err


async def test_a_cluster_is_looked_for_before_the_prompt_appears(url: str) -> None:
    async with ClusterConnection(url) as client:
        await client.reach()
    async with ClusterConnection("http://127.0.0.1:9") as client:
        with pytest.raises(NoClusterError, match='start one with "tocsin up"'):
            await client.reach()


def test_help_is_quick_and_needs_nothing_heavy() -> None:
    code = (
        "import sys; from tocsin.cli.main import app; app(['--help'], result_action='return_value'); "
        "sys.exit(any(m in sys.modules for m in ('pyspark', 'pyarrow', 'aiohttp', 'sqlglot', 'pydantic')))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    for command in ("up", "sql", "token", "config", "backup", "restore"):
        assert command in done.stdout
