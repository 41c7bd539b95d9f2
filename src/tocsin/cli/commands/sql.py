"""`tocsin sql`: sends statements to a cluster, from a prompt, the command line, a file or a pipe.

A request has no memory of earlier ones, so the shell repeats the last USE before each script.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from tocsin.cli.options import ClusterToken, ClusterUrl
from tocsin.cli.output import exit_status
from tocsin.wire.errors import InputError, TocsinError

if TYPE_CHECKING:
    from tocsin.cli.client import ClusterConnection, StatementDone
    from tocsin.cli.output import RowPrinter
    from tocsin.cli.prompt import NameCompleter

app = App(
    name="sql",
    help_format="plaintext",
    help_epilogue="""The exit status is 1 if a statement failed, and 2 if no cluster answers.

Examples:

    tocsin sql
    tocsin sql -e 'SELECT VALUE 1 + 1;'
    tocsin sql -f schema.sql
    tocsin sql --format csv -e 'USE emergency; SELECT * FROM Reports;'
    echo 'SELECT VALUE 1;' | tocsin sql --format json
""",
)

_HELP = """\\d   list the datasets      \\q   quit (also Ctrl-D)      \\?   this help
A statement ends with a semicolon; Enter before that begins a new line. Tab completes. Ctrl-C cancels the script."""
_DATASETS = (
    "SELECT d.DataverseName AS dataverse, d.DatasetName AS dataset, "
    "d.DatatypeDataverseName || '.' || d.DatatypeName AS type "
    'FROM Metadata.`Dataset` AS d WHERE d.DataverseName != "Metadata" ORDER BY d.DataverseName, d.DatasetName;'
)
_NAMES = (
    "SELECT VALUE v.DataverseName FROM Metadata.`Dataverse` AS v; "
    "SELECT VALUE d.DatasetName FROM Metadata.`Dataset` AS d; "
    "SELECT VALUE t.DatatypeName FROM Metadata.`Datatype` AS t; SELECT VALUE f.Name FROM Metadata.`Function` AS f;"
)
_INTERRUPTED = 130


@app.default
def sql(
    *,
    execute: Annotated[
        str | None, Parameter(name=["--execute", "-e"], help="The script to run, instead of a prompt.")
    ] = None,
    file: Annotated[
        Path | None,
        Parameter(
            name=["--file", "-f"], allow_leading_hyphen=True, help="The file with the script; - is standard input."
        ),
    ] = None,
    format: Annotated[  # noqa: A002 - the flag is called so
        Literal["table", "json", "csv"],
        Parameter(help="The form of rows: table, one line of JSON per row, or CSV with a header."),
    ] = "table",
    url: ClusterUrl = None,
    token: ClusterToken = None,
    timeout: Annotated[float | None, Parameter(help="The longest time that a script may take, in seconds.")] = None,
) -> int:
    """Run statements: at a prompt, or from --execute, --file or a pipe."""
    if execute is not None and file is not None:
        raise InputError("-e and -f cannot be given together")
    interactive = execute is None and file is None and sys.stdin.isatty()
    script = None if interactive else (execute if execute is not None else _read(file))
    return asyncio.run(_session(url, token, script, format, timeout))


def _read(file: Path | None) -> str:
    try:
        content = sys.stdin.buffer.read() if file is None or str(file) == "-" else file.read_bytes()
        return content.decode("utf-8-sig")
    except OSError as exc:
        raise InputError(f"{file}: {exc.strerror}") from None
    except UnicodeDecodeError as exc:
        raise InputError(f"{file or 'standard input'} is not UTF-8: byte {exc.start} cannot be read") from None


async def _session(
    url: str | None,
    token: str | None,
    script: str | None,
    form: Literal["table", "json", "csv"],
    timeout_s: float | None,
) -> int:
    from tocsin.cli.client import DEFAULT_URL, ClusterConnection
    from tocsin.cli.output import printer

    async with ClusterConnection(url or DEFAULT_URL, token) as client:
        shell = Shell(client, printer(form, sys.stdout, sys.stderr), timeout_s)
        if script is not None:
            return await shell.run(script)
        await client.reach()
        return await interact(shell)


class Shell:
    """Runs scripts one after the other, and remembers the dataverse in use between them."""

    def __init__(self, client: ClusterConnection, printer: RowPrinter, timeout_s: float | None = None) -> None:
        self._client = client
        self._printer = printer
        self._timeout_s = timeout_s
        self._dataverse: str | None = None
        self.catalog_changed = True

    async def run(self, script: str) -> int:
        """Runs a script and prints its rows, or its error. Returns the exit status."""
        from tocsin.cli.client import RowReceived
        from tocsin.cli.output import print_error

        # A request has no memory of earlier ones: repeat the last USE, on a line of its own.
        before = 0 if self._dataverse is None else 1
        whole = script if self._dataverse is None else f"USE `{self._dataverse}`;\n{script}"
        try:
            async with contextlib.aclosing(self._client.run(whole, timeout_s=self._timeout_s)) as events:
                async for event in events:
                    if event.statement <= before:
                        continue
                    if isinstance(event, RowReceived):
                        self._printer.row(event)
                    else:
                        self._printer.print_outcome(event)
                        self._note(event)
        except TocsinError as error:
            if error.statement is not None and error.statement <= before:
                # The dataverse in use was dropped: run the script without it.
                self._dataverse = None
                return await self.run(script)
            if error.line is not None:
                error.line -= before
            sys.stdout.flush()
            print_error(error, script, sys.stderr)
            return exit_status(error)
        return 0

    def _note(self, done: StatementDone) -> None:
        if done.kind == "use":
            self._dataverse = done.summary.get("dataverse", self._dataverse)
        self.catalog_changed = self.catalog_changed or done.kind not in ("query", "insert", "upsert", "delete", "load")

    async def names(self) -> list[str]:
        """Returns the names in the catalog; none if the cluster does not answer."""
        from tocsin.cli.client import RowReceived

        self.catalog_changed = False
        names: set[str] = set()
        with contextlib.suppress(TocsinError):
            async with contextlib.aclosing(self._client.run(_NAMES)) as events:
                async for event in events:
                    if isinstance(event, RowReceived):
                        names.add(str(event.value()))
        return sorted(names)


async def interact(shell: Shell) -> int:
    """Reads statements from the terminal and runs them until the user quits. Returns the exit status."""
    from tocsin.cli.prompt import NameCompleter, prompt_session

    completer = NameCompleter()
    session = prompt_session(completer)
    sys.stdout.write("Statements end with a semicolon; \\? shows help, \\q quits.\n")
    refreshing: asyncio.Task[None] | None = None
    while True:
        if shell.catalog_changed:
            refreshing = asyncio.create_task(_refresh(shell, completer))
        try:
            text = (await session.prompt_async("tocsin> ")).strip()
        except KeyboardInterrupt:
            continue
        except EOFError:
            break
        if text in ("\\q", "exit", "quit"):
            break
        if text == "\\?":
            sys.stdout.write(f"{_HELP}\n")
        elif text == "\\d":
            await run_interruptibly(shell, _DATASETS)
        elif text.startswith("\\"):
            sys.stdout.write(f"unknown command {text.split()[0]}; \\? lists the commands\n")
        elif text:
            await run_interruptibly(shell, text)
    if refreshing is not None:
        refreshing.cancel()
    return 0


async def _refresh(shell: Shell, completer: NameCompleter) -> None:
    completer.names = await shell.names()


async def run_interruptibly(shell: Shell, script: str) -> int:
    """Runs a script. Ctrl-C cancels it, here and in the cluster, and returns to the prompt."""
    task = asyncio.create_task(shell.run(script))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        sys.stderr.write("cancelled\n")
        return _INTERRUPTED
    finally:
        loop.remove_signal_handler(signal.SIGINT)
