"""Parses URLs and endpoints.

Settings, statements and servers share it, so that an address is valid everywhere or nowhere.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import SplitResult, urlsplit


def http_address(text: str) -> SplitResult | None:
    """The parts of an HTTP URL; None if no request could be sent there."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        return None
    if not usable or any(character.isspace() or not character.isprintable() for character in text):
        return None
    return parts


def parse_endpoint(text: str) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int] | None:
    """The address and port in a text such as 127.0.0.1:8480 or [::1]:8480; None if it is no such text."""
    host, _, port = text.rpartition(":")
    is_v6 = host.startswith("[") and host.endswith("]")
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16):
        return None
    try:
        return (ipaddress.IPv6Address(host[1:-1]) if is_v6 else ipaddress.IPv4Address(host)), int(port)
    except ValueError:
        return None


def carries_password(parts: SplitResult) -> bool:
    return parts.username is not None or parts.password is not None
