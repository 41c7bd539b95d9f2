"""Who works on a data folder, for somebody who does not want to hold it."""

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
    """`address` is None where it serves nobody: another command that works on the folder."""

    pid: int | None
    address: str | None


def find(folder: Path) -> LockOwner | None:
    """The process that holds the folder now."""
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"the data folder {folder} cannot be used: {error.strerror}") from None
    try:
        # Shared, so that two who only look do not take each other for a holder.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return _said(os.pread(descriptor, READ_LIMIT_BYTES, 0))
    finally:
        os.close(descriptor)


def _said(content: bytes) -> LockOwner:
    try:
        said = json.loads(content)
        return LockOwner(said.get("pid"), said.get("address"))
    except (ValueError, AttributeError):
        return LockOwner(None, None)
