"""Keeps data folders private to the user who runs Tocsin.

The stores in them have secrets and hashes of passwords.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

import structlog

from tocsin.store.broker.files import PATTERN as BROKERS
from tocsin.wire.errors import InputError

PRIVATE: Final = 0o700
_OPEN: Final = stat.S_IRWXG | stat.S_IRWXO
# These files distinguish a data folder from a folder that was named by mistake, such as /var/lib.
_MARKS: Final = ("lock", "catalog.sqlite", "channels.db", BROKERS)
_BEFORE_US: Final = frozenset({"python", "lost+found"})
"""What a data folder may contain before Tocsin writes to it."""

_log = structlog.get_logger("tocsin.store")


def make_private(folder: Path) -> None:
    """Creates the folder if there is none, and closes an open folder to other users. Raises InputError if the folder
    belongs to another user or contains other things.
    """
    folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    status = folder.stat()
    if not status.st_mode & _OPEN:
        return
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.geteuid() or mode & stat.S_ISVTX or not _is_data(folder):
        raise InputError(
            f"the folder {folder} is open to other users of this machine (mode {mode:04o})",
            hint=f"choose a folder in it that is yours alone; or, where it is, chmod 700 {folder}",
        )
    folder.chmod(PRIVATE)
    _log.warning("the data folder was open to other users, and is not any more", folder=str(folder), mode=f"{mode:04o}")


def _is_data(folder: Path) -> bool:
    names = {path.name for path in folder.iterdir()}
    return names <= _BEFORE_US or any(next(folder.glob(mark), None) is not None for mark in _MARKS)
