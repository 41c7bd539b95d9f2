"""What the files of brokers are called, in the data folder and in a backup of it."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import quote, unquote

PATTERN: Final = "broker-?*.db"


def file_of(broker: str) -> str:
    """Of the broker with this full name, which may hold what a file's name may not."""
    return f"broker-{quote(broker, safe=' ')}.db"


def broker_of(file: str) -> str:
    """The full name of the broker whose file is called so."""
    return unquote(file.removeprefix("broker-").removesuffix(".db"))


def is_brokers(path: str) -> bool:
    """Whether a path inside of a data folder is one of a broker's file."""
    return "/" not in path and fnmatchcase(path, PATTERN)
