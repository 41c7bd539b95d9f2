"""Framing: wraps an envelope in the bytes of a WebSocket message or an HTTP chunk."""

from __future__ import annotations

from struct import Struct
from typing import Final

_TEXT: Final = 0x81  # FIN and the text opcode: the message is a single frame
_SHORT: Final = 126
_LONG: Final = 127
_TWO: Final = Struct("!BBH")
_EIGHT: Final = Struct("!BBQ")


def websocket_frame(message: bytes) -> bytes:
    """A server's text message: unmasked, uncompressed, in a single frame."""
    size_bytes = len(message)
    if size_bytes < _SHORT:
        return bytes((_TEXT, size_bytes)) + message
    if size_bytes < 1 << 16:
        return _TWO.pack(_TEXT, _SHORT, size_bytes) + message
    return _EIGHT.pack(_TEXT, _LONG, size_bytes) + message


def http_chunk(some: bytes) -> bytes:
    """A chunk of an HTTP response with chunked transfer encoding."""
    return b"%x\r\n%b\r\n" % (len(some), some)
