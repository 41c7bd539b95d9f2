"""The limits of an intake log, and the errors for appends above them."""

from __future__ import annotations

from typing import Final

from tocsin.cluster.intake.frames import BODY_LIMIT_BYTES, KEY_LIMIT_BYTES
from tocsin.wire.errors import LimitError

# Bytes in memory that may wait for the disk.
_WAITING_BYTES: Final = 64 << 20
_RETRY_AFTER_S: Final = 1


def check_size(size_bytes: int, key: bytes | None, limit_bytes: int) -> None:
    """Refuses an append that is too large for the log at any time."""
    if key is not None and len(key) > KEY_LIMIT_BYTES:
        raise LimitError(f"an idempotency key has at most {KEY_LIMIT_BYTES} bytes, this one has {len(key)}")
    limit_bytes = min(limit_bytes, BODY_LIMIT_BYTES)
    if size_bytes > limit_bytes:
        raise LimitError(f"{size_bytes} bytes at once are more than the feed's log may hold ({limit_bytes})")


def check_room(size_bytes: int, unlanded_bytes: int, waiting_bytes: int, limit_bytes: int) -> None:
    """Refuses an append for now (backpressure), while the datasets or the disk are behind."""
    if unlanded_bytes + waiting_bytes + size_bytes > limit_bytes:
        reason = f"the feed is behind: its log may hold {limit_bytes} bytes that have not reached their datasets"
    elif waiting_bytes and waiting_bytes + size_bytes > _WAITING_BYTES:
        reason = f"the disk is behind: {_WAITING_BYTES} bytes may wait to be written"
    else:
        return
    raise LimitError(reason, hint="send again in a moment", status=429, retry=True, retry_after_s=_RETRY_AFTER_S)
