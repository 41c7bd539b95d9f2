"""Checks the options of a feed that polls a URL: the address, the format and the period."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from tocsin.cluster.feeds import periods
from tocsin.pipeline.sources import items
from tocsin.wire.errors import InputError

POLLED: Final[Mapping[str, tuple[str, ...]]] = dict.fromkeys(items.FORMATS, ())
"""The formats of an answer, with the options of each: none."""
PERIOD_S: Final = 60.0
LEAST_PERIOD_S: Final = 1.0
_ADDRESS_CHARACTERS: Final = 8_000


@dataclass(frozen=True, slots=True)
class UrlOptions:
    url: str
    format: str
    period_s: float = PERIOD_S

    @property
    def host(self) -> str:
        """The part of the URL that may be logged: the rest may contain a secret."""
        return urlsplit(self.url).hostname or ""


def check_url_options(texts: Mapping[str, str], format: str) -> UrlOptions:  # noqa: A002 - what it is everywhere
    """Checks the options. InputError names the wrong option."""
    period_s = periods.period_s(texts["period"], LEAST_PERIOD_S) if "period" in texts else PERIOD_S
    return UrlOptions(_address(texts.get("url", "").strip()), format, period_s)


def _address(text: str) -> str:
    try:
        parts = urlsplit(text)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_valid = False
    if not is_valid or len(text) > _ADDRESS_CHARACTERS or not text.isprintable() or " " in text:
        raise InputError('url: must be an address such as "https://example.org/items.json"')
    return text
