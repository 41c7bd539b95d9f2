"""How rows and errors look on a terminal, in a pipe, and in a file."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable
from typing import Any, Final, Literal, Protocol, TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tocsin.cli.client import RowReceived, StatementDone
from tocsin.wire.errors import InputError, TocsinError

Format = Literal["table", "json", "csv"]

_PAGE_ROWS = 1_000
_WIDE = 100_000
# What would move the cursor, recolour the screen or turn the line round.
_UNSAFE: Final = frozenset(
    {chr(code) for code in (*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))} - {"\n"}
)


class RowPrinter(Protocol):
    """Prints outcomes as they come, keeping a bounded number of rows."""

    def row(self, row: RowReceived) -> None: ...

    def done(self, done: StatementDone) -> None: ...


def printer(form: Format, out: TextIO, err: TextIO) -> RowPrinter:
    if form == "json":
        return JsonPrinter(out, err)
    if form == "csv":
        return CsvPrinter(out, err)
    return TablePrinter(out)


class JsonPrinter:
    """One row per line, exactly as the cluster wrote it."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err

    def row(self, row: RowReceived) -> None:
        self._out.write(row.json.decode() + "\n")

    def done(self, done: StatementDone) -> None:
        self._out.flush()
        if not done.has_rows:
            self._err.write(describe_outcome(done) + "\n")


class CsvPrinter:
    """A header and one record per row. The header holds the fields of the first page of rows."""

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

    def done(self, done: StatementDone) -> None:
        if done.has_rows:
            self._flush()
            self._columns = None
            self._count = 0
        else:
            self._err.write(describe_outcome(done) + "\n")
        self._out.flush()

    def _flush(self) -> None:
        if self._columns is None and self._page:
            self._columns = _columns(self._page)
            self._writer.writerow(self._columns)
        for fields in self._page:
            self._count += 1
            columns = self._columns or []
            if strange := [name for name in fields if name not in columns]:
                raise InputError(
                    f"row {self._count} has the field {strange[0]!r}, which the header above lacks",
                    hint="name the fields in the query, or use --format json",
                )
            self._writer.writerow([_csv_cell(fields.get(name)) for name in columns])
        self._page = []


class TablePrinter:
    """A table per page of rows, as wide as it needs; folded to the terminal where there is one."""

    def __init__(self, out: TextIO) -> None:
        width = None if out.isatty() else _WIDE
        self._console = Console(file=out, width=width, highlight=False, emoji=False, markup=False)
        self._page: list[dict[str, Any]] = []
        self._count = 0

    def row(self, row: RowReceived) -> None:
        self._page.append(_fields(row.value()))
        self._count += 1
        if len(self._page) >= _PAGE_ROWS:
            self._flush()

    def done(self, done: StatementDone) -> None:
        if done.has_rows:
            self._flush()
            self._console.print(f"({self._count} {'row' if self._count == 1 else 'rows'})")
            self._count = 0
        else:
            self._console.print(safe(describe_outcome(done)))

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


def describe_outcome(done: StatementDone) -> str:
    """What a statement did, in words: `insert: inserted 3`, `create type Report`."""
    summary = dict(done.summary)
    words = " ".join([done.kind.replace("_", " "), *([safe(str(summary.pop("name")))] if "name" in summary else [])])
    details = ", ".join(f"{name} {_plain(value)}" for name, value in summary.items() if value is not None)
    return f"{words}: {details}" if details else words


def print_error(error: TocsinError, script: str | None, err: TextIO) -> None:
    """The error; under it the offending line with a caret, where it names a place; and what to do about it."""
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
    """The text with what would take control of a terminal written out."""
    if _UNSAFE.isdisjoint(text):
        return text
    return "".join(c.encode("unicode_escape").decode() if c in _UNSAFE else c for c in text)


def _fields(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {"value": value}


def _columns(page: Iterable[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for fields in page for name in fields))


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _csv_cell(value: Any) -> str:
    return "" if value is None else _plain(value)


def _table_cell(fields: dict[str, Any], name: str) -> Text:
    if name not in fields:
        return Text("")
    value = fields[name]
    return Text("null", style="dim") if value is None else Text(safe(_plain(value)))


def standard_printer(form: Format) -> RowPrinter:
    return printer(form, sys.stdout, sys.stderr)
