"""The limit of open files. A connection is a file, and a server without free files can serve no client."""

from __future__ import annotations

import resource
from typing import Final

RESERVED: Final = 256
"""Files for other purposes than client connections: stores, logs, datasets and outgoing connections."""
_MOST: Final = 1 << 20


def raise_file_limit() -> int:
    """Raises the soft limit as far as the system allows and returns it. Shells and service managers set it to 1,024,
    for the sake of old programs that cannot handle more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = _MOST if hard == resource.RLIM_INFINITY else min(_MOST, hard)
    if soft == resource.RLIM_INFINITY or soft >= target:
        return _MOST if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    except (OSError, ValueError):
        return soft
    return target


def connections_within(files: int, connections_limit: int) -> int:
    """The number of connections for which `files` open files are enough, at most `connections_limit`."""
    return min(connections_limit, max(1, files - min(RESERVED, files // 2)))
