"""Lays out a report as Markdown whose lines fit into 120 columns: paragraphs, tables, and lists instead of wide tables.

A row of a Markdown table cannot be wrapped. A table that is too wide is therefore split by its columns; where a single
cell is too wide, each row becomes an item of a list.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import Final

_WIDTH: Final = 120
_SHORT: Final = 30  # shorter cells of a list share a line


def paragraph(text: str) -> str:
    return _wrapped(text, "", "")


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]], keys: int = 1) -> list[str]:
    """Returns the lines of a table. If it is split, each part repeats the first columns, which are its `keys`."""
    parts: list[list[int]] = [[]]
    for column in range(keys, len(head)):
        if parts[-1] and not _fits(_table(head, rows, [*range(keys), *parts[-1], column])):
            parts.append([])
        parts[-1].append(column)
    tables = [_table(head, rows, [*range(keys), *part]) for part in parts]
    if not all(map(_fits, tables)):
        return _list(head, rows)
    return [line for table in tables for line in ("", *table)][1:]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], columns: Sequence[int]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(_cell(line[column]) for column in columns)} |" for line in lines]


def _fits(lines: Sequence[str]) -> bool:
    return max(map(len, lines)) <= _WIDTH


def _cell(text: str) -> str:
    return re.sub(r"\s*\n\s*", " ", text).replace("|", r"\|")


def _list(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lists the rows: the first cell as an item, the others below it under their heads, without empty ones."""
    lines = []
    for first, *others in rows:
        cells = [(name, text) for name, text in zip(head[1:], others, strict=True) if text]
        short = " · ".join(f"{name}: {text}" for name, text in cells if len(text) < _SHORT)
        long = [f"{name}: {text}" for name, text in cells if len(text) >= _SHORT]
        lines.append(_wrapped(first, "- ", "  "))
        lines += [_wrapped(text, "  - ", "    ") for text in (short, *long) if text]
    return lines


def _wrapped(text: str, first: str, further: str) -> str:
    return textwrap.fill(
        text, _WIDTH, initial_indent=first, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
    )
