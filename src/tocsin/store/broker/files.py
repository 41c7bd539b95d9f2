"""Names of brokers' store files, in the data folder and in its backups.

Brokers' names may contain any character, so a name is encoded in the file's name and can be read back from it.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import quote, unquote

PATTERN: Final = "broker-?*.db"


def file_of(broker: str) -> str:
    """The file name for a broker's full name. It escapes characters that a file name cannot contain."""
    return f"broker-{quote(broker, safe=' ')}.db"


def broker_of(file: str) -> str:
    """The full name of the broker with this file name."""
    return unquote(file.removeprefix("broker-").removesuffix(".db"))


def is_brokers(path: str) -> bool:
    """Whether a path inside a data folder is a broker's store file."""
    return "/" not in path and fnmatchcase(path, PATTERN)
