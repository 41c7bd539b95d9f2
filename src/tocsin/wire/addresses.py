"""Addresses that something is sent to over HTTP."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit


def http_address(text: str) -> SplitResult | None:
    """The parts of an address that can be asked; None where nothing could be sent there."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        return None
    if not usable or any(letter.isspace() or not letter.isprintable() for letter in text):
        return None
    return parts


def carries_password(parts: SplitResult) -> bool:
    return parts.username is not None or parts.password is not None
