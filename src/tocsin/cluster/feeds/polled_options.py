"""What a feed that polls an address may say of it: where it is, and how often it is asked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from tocsin.pipeline.readers import items
from tocsin.rules.model.values import parse_duration
from tocsin.wire.errors import InputError

POLLED: Final[Mapping[str, tuple[str, ...]]] = dict.fromkeys(items.FORMATS, ())
"""Each format of an answer, and the options that it takes: none."""
PERIOD_S: Final = 60.0
LEAST_PERIOD_S: Final = 1.0
MOST_PERIOD_S: Final = 31 * 86_400.0
_ADDRESS_CHARACTERS: Final = 8_000
_SECONDS: Final = re.compile(r"\d{1,9}(\.\d{1,9})?")


@dataclass(frozen=True, slots=True)
class Polling:
    url: str
    format: str
    period_s: float = PERIOD_S

    @property
    def host(self) -> str:
        """What may be told of the address: the rest of it may hold a secret."""
        return urlsplit(self.url).hostname or ""


def polling(texts: Mapping[str, str], format: str) -> Polling:  # noqa: A002 - what it is everywhere
    """The options, checked; InputError names the one that is wrong."""
    period_s = _period_s(texts["period"]) if "period" in texts else PERIOD_S
    return Polling(_address(texts.get("url", "").strip()), format, period_s)


def _address(text: str) -> str:
    try:
        found = urlsplit(text)
        named = found.scheme in ("http", "https") and bool(found.hostname) and (found.port is None or found.port > 0)
    except ValueError:
        named = False
    if not named or len(text) > _ADDRESS_CHARACTERS or not text.isprintable() or " " in text:
        raise InputError('url: must be an address such as "https://example.org/items.json"')
    return text


def _period_s(text: str) -> float:
    wanted = text.strip()
    if _SECONDS.fullmatch(wanted):
        period_s = float(wanted)
    else:
        try:
            duration = parse_duration(wanted)
        except ValueError:
            raise InputError(f'period: must be a duration such as "PT1M", or seconds, got "{text}"') from None
        if duration.months:
            raise InputError(f'period: months are of no fixed length; say it in days, got "{text}"')
        period_s = duration.micros / 1e6
    if not LEAST_PERIOD_S <= period_s <= MOST_PERIOD_S:
        raise InputError(f'period: must be from {LEAST_PERIOD_S:g} s to {MOST_PERIOD_S / 86_400:g} days, got "{text}"')
    return period_s
