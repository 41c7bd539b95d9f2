"""Reads the site's Spark settings: `spark-defaults.conf` in SPARK_CONF_DIR, or in SPARK_HOME's `conf`.

spark-submit reads the file as well. Here it decides what we may set ourselves, and what we only add to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tocsin.wire.errors import UnavailableError

_FILE: Final = "spark-defaults.conf"
# A key ends at white space, `=` or `:`, as in all property files of Java.
_ENTRY: Final = re.compile(r"((?:\\.|[^\s=:\\])+)(?:\s*[=:]\s*|\s+|$)(.*)", re.DOTALL)


def site_defaults(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings of the site, or none if it has no such file. Raises UnavailableError if it is unreadable."""
    folder = env.get("SPARK_CONF_DIR") or (f"{env['SPARK_HOME']}/conf" if env.get("SPARK_HOME") else None)
    if folder is None:
        return {}
    file = Path(folder, _FILE)
    try:
        text = file.read_text("utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise UnavailableError(f"Spark's settings in {file} cannot be read: {error}") from error
    return {key: value for key, value in _entries(text) if key.startswith("spark.")}


def _entries(text: str) -> Iterator[tuple[str, str]]:
    for line in _lines(text):
        match = _ENTRY.fullmatch(line)
        if match is not None:
            yield _unescaped(match[1]), _unescaped(match[2]).strip()


def _lines(text: str) -> Iterator[str]:
    """Yields the logical lines: a backslash at the end continues a line, and comments begin with # or !."""
    held = ""
    for raw in text.splitlines():
        line = held + raw.lstrip()
        if not held and (not line or line[0] in "#!"):
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            held = line[:-1]
            continue
        held = ""
        yield line
    if held:
        yield held


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)
