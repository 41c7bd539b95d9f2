"""Prints rows, tables, progress bars and errors: on a terminal, in a pipe, and in a file.

What servers send is printed without control characters, because a record could otherwise write to the terminal.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tocsin.wire.errors import EXIT_FENCED, FencedError, InputError, TocsinError

if TYPE_CHECKING:  # the lab can be installed without the client's dependencies
    from rich.progress import ProgressColumn

    from tocsin.cli.client import RowReceived, StatementDone

_RowFormat = Literal["table", "json", "csv"]

_PAGE_ROWS = 1_000
_WIDE = 100_000
# Characters that would move the cursor, change colours or reverse the direction of text.
_UNSAFE: Final = frozenset(
    {chr(code) for code in (*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))} - {"\n"}
)


class RowPrinter(Protocol):
    """Prints rows and outcomes as they arrive, and buffers a limited number of rows."""

    def row(self, row: RowReceived) -> None: ...

    def print_outcome(self, done: StatementDone) -> None: ...


def printer(form: _RowFormat, out: TextIO, err: TextIO) -> RowPrinter:
    if form == "json":
        return JsonPrinter(out, err)
    if form == "csv":
        return _CsvPrinter(out, err)
    return TablePrinter(out)


class JsonPrinter:
    """Prints one row per line, exactly as the cluster wrote it."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err

    def row(self, row: RowReceived) -> None:
        self._out.write(row.json.decode() + "\n")

    def print_outcome(self, done: StatementDone) -> None:
        self._out.flush()
        if not done.has_rows:
            self._err.write(_describe_outcome(done) + "\n")


class _CsvPrinter:
    """Prints a header and one record per row. The header names the fields of the first page of rows."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._err = err
        self._out = out
        self._writer = csv.writer(out, lineterminator="\n")
        self._page: list[dict[str, Any]] = []
        self._columns: list[str] | None = None
        self._count = 0

    def row(self, row: RowReceived) -> None:
        self._page.append(_fields(row.value()))
        if len(self._page) >= _PAGE_ROWS:
            self._flush()

    def print_outcome(self, done: StatementDone) -> None:
        if done.has_rows:
            self._flush()
            self._columns = None
            self._count = 0
        else:
            self._err.write(_describe_outcome(done) + "\n")
        self._out.flush()

    def _flush(self) -> None:
        if self._columns is None and self._page:
            self._columns = _columns(self._page)
            self._writer.writerow(self._columns)
        for fields in self._page:
            self._count += 1
            columns = self._columns or []
            if unknown := [name for name in fields if name not in columns]:
                raise InputError(
                    f"row {self._count} has the field {unknown[0]!r}, which the header above lacks",
                    hint="name the fields in the query, or use --format json",
                )
            self._writer.writerow(["" if fields.get(name) is None else plain(fields[name]) for name in columns])
        self._page = []


class TablePrinter:
    """Prints a table per page of rows, folded to the width of the terminal if the output is one."""

    def __init__(self, out: TextIO) -> None:
        self._console = _console(out)
        self._page: list[dict[str, Any]] = []
        self._count = 0

    def row(self, row: RowReceived) -> None:
        self._page.append(_fields(row.value()))
        self._count += 1
        if len(self._page) >= _PAGE_ROWS:
            self._flush()

    def print_outcome(self, done: StatementDone) -> None:
        if done.has_rows:
            self._flush()
            self._console.print(f"({self._count} {'row' if self._count == 1 else 'rows'})")
            self._count = 0
        else:
            self._console.print(safe(_describe_outcome(done)))

    def _flush(self) -> None:
        if not self._page:
            return
        names = _columns(self._page)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for name in names:
            numeric = all(_is_number(fields.get(name)) for fields in self._page)
            table.add_column(Text(safe(name)), justify="right" if numeric else "left", overflow="fold")
        for fields in self._page:
            table.add_row(*(_table_cell(fields, name) for name in names))
        self._console.print(table)
        self._page = []


def print_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], out: TextIO, *, numbers_from: int | None = None
) -> None:
    """Prints a table without lines; columns from `numbers_from` on are aligned to the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for number, head in enumerate(heads):
        is_number = numbers_from is not None and number >= numbers_from
        table.add_column(Text(head), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(safe(cell)) for cell in row))
    console = _console(out)
    with console.capture() as captured:
        console.print(table)
    out.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


@contextmanager
def progress_bar(
    description: str, *columns: type[ProgressColumn] | str, total: float | None = None, **fields: Any
) -> Iterator[Callable[..., None]]:
    """Shows a bar on standard error if that is a terminal. Yields the function that updates it, which takes what
    `rich.progress.Progress.update` takes. A column is a class, or a template of text."""
    if not sys.stderr.isatty():
        yield lambda **_: None
        return
    from rich.progress import BarColumn, Progress, TextColumn

    parts = (TextColumn(column) if isinstance(column, str) else column() for column in columns)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), *parts, console=Console(stderr=True), transient=True
    ) as bar:
        yield partial(bar.update, bar.add_task(description, total=total, **fields))


def _console(out: TextIO) -> Console:
    """Returns a console that folds lines only if the output is a terminal."""
    return Console(file=out, width=None if out.isatty() else _WIDE, highlight=False, emoji=False, markup=False)


def _describe_outcome(done: StatementDone) -> str:
    """Returns the outcome of a statement as text: `insert: inserted 3`, `create type Report`."""
    summary = dict(done.summary)
    words = " ".join([done.kind.replace("_", " "), *([safe(str(summary.pop("name")))] if "name" in summary else [])])
    details = ", ".join(f"{name} {plain(value)}" for name, value in summary.items() if value is not None)
    return f"{words}: {details}" if details else words


def print_error(error: TocsinError, script: str | None, err: TextIO) -> None:
    """Prints the error, the line of the script with a caret if the error has a position, and the hint."""
    place = f"line {error.line}, column {error.column}: " if error.line is not None else ""
    err.write(f"error: {place}{safe(error.message)}\n")
    lines = (script or "").split("\n")
    if error.line is not None and 1 <= error.line <= len(lines):
        line = lines[error.line - 1].rstrip("\r").expandtabs(1)
        gutter = f"{error.line:>5} | "
        err.write(f"{gutter}{safe(line)}\n")
        if error.column is not None:
            before = safe(line[: error.column - 1])
            err.write(f"{' ' * (len(gutter) - 2)}| {' ' * cell_len(before)}^\n")
    if error.hint:
        err.write(f"hint: {safe(error.hint)}\n")
    err.flush()


def safe(text: str) -> str:
    """Escapes the characters that would control a terminal."""
    if _UNSAFE.isdisjoint(text):
        return text
    return "".join(c.encode("unicode_escape").decode() if c in _UNSAFE else c for c in text)


def _fields(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {"value": value}


def _columns(page: Iterable[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for fields in page for name in fields))


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def plain(value: Any) -> str:
    """Returns a text as it is, and any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _table_cell(fields: dict[str, Any], name: str) -> Text:
    if name not in fields:
        return Text("")
    value = fields[name]
    return Text("null", style="dim") if value is None else Text(safe(plain(value)))


# By the code of an error; else 1. Scripts and supervisors decide by it whether to try again.
_EXIT_STATUS: Final = {"no_cluster": 2, "no_broker": 2, FencedError.code: EXIT_FENCED}


def exit_status(error: TocsinError) -> int:
    """Returns the exit status of a failed command: 2 if no server answers, 3 for a broker whose name another broker has
    taken over, 1 for any other error."""
    return _EXIT_STATUS.get(error.code, 1)
