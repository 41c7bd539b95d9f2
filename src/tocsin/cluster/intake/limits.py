"""What an intake log does not take, and what it says then."""

from __future__ import annotations

from typing import Final

from tocsin.cluster.intake.frames import BODY_LIMIT_BYTES, KEY_LIMIT_BYTES
from tocsin.wire.errors import LimitError

# What may wait for the disk in memory.
_WAITING_BYTES: Final = 64 << 20
_RETRY_AFTER_S: Final = 1


def check_size(size_bytes: int, key: bytes | None, limit_bytes: int) -> None:
    """Refuses an append that could never be taken."""
    if key is not None and len(key) > KEY_LIMIT_BYTES:
        raise LimitError(f"an idempotency key has at most {KEY_LIMIT_BYTES} bytes, this one has {len(key)}")
    limit_bytes = min(limit_bytes, BODY_LIMIT_BYTES)
    if size_bytes > limit_bytes:
        raise LimitError(f"{size_bytes} bytes at once are more than the feed's log may hold ({limit_bytes})")


def check_room(size_bytes: int, unlanded_bytes: int, waiting_bytes: int, limit_bytes: int) -> None:
    """Refuses an append for now, while the datasets or the disk are behind."""
    if unlanded_bytes + waiting_bytes + size_bytes > limit_bytes:
        why = f"the feed is behind: its log may hold {limit_bytes} bytes that have not reached their datasets"
    elif waiting_bytes and waiting_bytes + size_bytes > _WAITING_BYTES:
        why = f"the disk is behind: {_WAITING_BYTES} bytes may wait to be written"
    else:
        return
    raise LimitError(why, hint="send again in a moment", status=429, retry=True, retry_after_s=_RETRY_AFTER_S)
