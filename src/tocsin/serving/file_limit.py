"""How many files the process may have open. Each connection is one, and nobody is served when there are no more."""

from __future__ import annotations

import resource
from typing import Final

RESERVED: Final = 256
"""Files that are not connections of clients: stores, logs, datasets, and what the server itself connects to."""
_MOST: Final = 1 << 20


def raise_file_limit() -> int:
    """As many files as the system lets us have without asking; how many that is. Shells and service managers start
    programs with 1,024, for the sake of old ones that cannot deal with more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(_MOST, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _MOST if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return soft
    return wanted


def connections_within(files: int, connections_limit: int) -> int:
    """How many connections there may be with so many files, of those that the settings allow."""
    return min(connections_limit, max(1, files - min(RESERVED, files // 2)))
