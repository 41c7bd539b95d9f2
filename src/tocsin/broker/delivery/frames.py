"""An envelope as the bytes that go into a connection, the same for all connections of a kind."""

from __future__ import annotations

from struct import Struct
from typing import Final

_TEXT: Final = 0x81  # the only and whole frame of a text message
_SHORT: Final = 126
_LONG: Final = 127
_TWO: Final = Struct("!BBH")
_EIGHT: Final = Struct("!BBQ")


def websocket_frame(message: bytes) -> bytes:
    """A text message as a server sends it: not masked, not compressed, not cut."""
    size_bytes = len(message)
    if size_bytes < _SHORT:
        return bytes((_TEXT, size_bytes)) + message
    if size_bytes < 1 << 16:
        return _TWO.pack(_TEXT, _SHORT, size_bytes) + message
    return _EIGHT.pack(_TEXT, _LONG, size_bytes) + message


def http_chunk(some: bytes) -> bytes:
    """A piece of an answer whose length is not known beforehand."""
    return b"%x\r\n%b\r\n" % (len(some), some)
