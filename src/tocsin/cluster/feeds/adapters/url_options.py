"""What a feed that polls an address may say of it: where it is, and how often it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from tocsin.cluster.feeds import periods
from tocsin.pipeline.sources import items
from tocsin.wire.errors import InputError

POLLED: Final[Mapping[str, tuple[str, ...]]] = dict.fromkeys(items.FORMATS, ())
"""Each format of an answer, and the options that it takes: none."""
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
        """What may be told of the address: the rest of it may hold a secret."""
        return urlsplit(self.url).hostname or ""


def polling(texts: Mapping[str, str], format: str) -> UrlOptions:  # noqa: A002 - what it is everywhere
    """The options, checked; InputError names the one that is wrong."""
    period_s = periods.period_s(texts["period"], LEAST_PERIOD_S) if "period" in texts else PERIOD_S
    return UrlOptions(_address(texts.get("url", "").strip()), format, period_s)


def _address(text: str) -> str:
    try:
        found = urlsplit(text)
        named = found.scheme in ("http", "https") and bool(found.hostname) and (found.port is None or found.port > 0)
    except ValueError:
        named = False
    if not named or len(text) > _ADDRESS_CHARACTERS or not text.isprintable() or " " in text:
        raise InputError('url: must be an address such as "https://example.org/items.json"')
    return text
