"""Tells kinds of Spark masters apart, and finds the address at which executors reach this machine.

With a local master, executors are threads of the driver's JVM. With any other, they are processes that see nothing of
the driver's disk: whatever they need is sent to them, and the tables are at a URL that they can reach.
"""

from __future__ import annotations

import re
import socket
from typing import Final

from tocsin.wire.errors import UnavailableError

_LOCAL: Final = re.compile(r"local(\[.*\])?")  # `local-cluster[…]` starts processes of its own
_STANDALONE: Final = "spark://"
_LOCAL_STORAGE_REMEDY: Final = (
    "set cluster.storage.url to tables that the workers can reach, such as s3://bucket/folder, "
    "or cluster.spark.master to local[*]"
)


def is_local(master: str) -> bool:
    return _LOCAL.fullmatch(master) is not None


def is_standalone(master: str) -> bool:
    return master.startswith(_STANDALONE)


def refuse_local_tables(master: str, *, is_storage_local: bool) -> None:
    """Raises UnavailableError if executors on other machines would have to read tables on this machine's disk."""
    if is_storage_local and not is_local(master):
        raise UnavailableError(
            f"the workers of {master} cannot read tables on this machine's disk", hint=_LOCAL_STORAGE_REMEDY
        )


def driver_host(master: str) -> str | None:
    """Returns this machine's address in the network of a standalone master; None if only Spark can tell."""
    if not is_standalone(master):
        return None
    host, _, port = master.removeprefix(_STANDALONE).partition(",")[0].rpartition(":")
    if not host or not port.isdigit():
        return None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # sends nothing: it only chooses the interface
            own: str = probe.getsockname()[0]
    except OSError:
        return None
    return own
