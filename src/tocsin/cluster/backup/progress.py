"""What writing a backup and restoring one have in common: long work beside the event loop, that tells how far it is."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tocsin.patience import to_the_end
from tocsin.pipeline.datasets.delta.durability import is_full_disk
from tocsin.wire.errors import InputError, StoppedError, StorageFullError

T = TypeVar("T")
Progress = Callable[[int, int], None]


def no_progress(done_bytes: int, all_bytes: int) -> None:
    """Nobody watches."""


def counting(all_bytes: int, on_progress: Progress, stop: threading.Event) -> Callable[[int], None]:
    """To be called with the bytes just passed; StoppedError once it shall stop."""
    done_bytes = 0

    def passed(size_bytes: int) -> None:
        nonlocal done_bytes
        if stop.is_set():
            raise StoppedError("it was stopped; nothing remains of it")
        done_bytes += size_bytes
        on_progress(done_bytes, all_bytes)

    return passed


async def in_thread(work: Callable[[threading.Event], T]) -> T:
    """Beside the event loop; cancelled, it is told to stop and waited for."""
    stop = threading.Event()
    return await to_the_end(asyncio.to_thread(work, stop), on_cancel=stop.set)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """What the operating system refuses, as an error that says what to do."""
    try:
        yield
    except OSError as error:
        if is_full_disk(error):
            raise StorageFullError(
                f"there is no room left for {path}", hint="make room, or choose another place; nothing was changed"
            ) from error
        raise InputError(f"{error.filename or path} cannot be used: {error.strerror or error}") from error


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
