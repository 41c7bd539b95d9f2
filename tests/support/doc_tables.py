"""Generates the tables of the docs that repeat the code: settings, crash points, metrics, errors.

`./dev docs` writes them; a test fails if a page is older than the code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.support.commands import ROOT
from tocsin import faults
from tocsin.settings import known_settings

Rows = Iterator[tuple[str, ...]]


def settings_rows() -> Rows:
    for path, field in known_settings().items():
        yield f"`{path}`", f"`{field.default}`", str(field.description)


def crash_point_rows() -> Rows:
    for point, description in faults.POINTS.items():
        yield f"`{point}`", description


TABLES: Final[Mapping[tuple[str, str], Callable[[], Rows]]] = {
    ("docs/operations.md", "## Settings"): settings_rows,
    ("docs/operations.md", "## Crash points"): crash_point_rows,
}
"""The first table below the heading of the page has these rows."""


def with_generated_tables(page: str, text: str) -> str:
    """Returns the page with its tables as the code has them; heads of tables and all else stay."""
    for (path, heading), rows in TABLES.items():
        if path == page:
            body = "".join(f"| {' | '.join(cells)} |\n" for cells in rows())
            pattern = re.compile(
                rf"(^{re.escape(heading)}\n.*?^\| ---[^\n]*\n)(?:\|[^\n]*\n)+", re.DOTALL | re.MULTILINE
            )
            text, count = pattern.subn(lambda found, body=body: found[1] + body, text, count=1)
            if not count:
                raise ValueError(f"{page} has no table below {heading}")
    return text


def main() -> None:
    for page in sorted({path for path, _ in TABLES}):
        file = Path(ROOT, page)
        before = file.read_text("utf-8")
        after = with_generated_tables(page, before)
        if after != before:
            file.write_text(after, "utf-8")
            print(f"wrote {page}")


if __name__ == "__main__":
    main()
