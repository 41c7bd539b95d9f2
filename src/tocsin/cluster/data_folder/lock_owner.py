"""Finds the process that owns a data folder, without taking its lock."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path

from tocsin.cluster.data_folder.lock import LOCK_NAME, READ_LIMIT_BYTES
from tocsin.wire.errors import InputError


@dataclass(frozen=True, slots=True)
class LockOwner:
    """The owner. `address` is None if it serves nobody, such as another command that works on the folder."""

    pid: int | None
    address: str | None


def find(folder: Path) -> LockOwner | None:
    """Returns the process that owns the folder now, or None."""
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"the data folder {folder} cannot be used: {error.strerror}") from None
    try:
        # Take a shared lock, so that two processes that only look do not see each other as owners.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return _said(os.pread(descriptor, READ_LIMIT_BYTES, 0))
    finally:
        os.close(descriptor)


def _said(content: bytes) -> LockOwner:
    try:
        fields = json.loads(content)
        return LockOwner(fields.get("pid"), fields.get("address"))
    except (ValueError, AttributeError):
        return LockOwner(None, None)
