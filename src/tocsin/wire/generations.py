"""The header in which a broker names its generation.

A broker that was replaced, and does not know it, has an older generation than the present broker of its name. By this
header the cluster refuses its requests.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

from tocsin.rules.model.cursors import Position
from tocsin.wire.cursors import parse_position, position_text
from tocsin.wire.errors import InputError

BROKER_HEADER: Final = "Tocsin-Broker"
"""A broker's full name, percent-encoded, and its generation from the cluster."""


def generation_header(broker: str, generation: Position) -> dict[str, str]:
    return {BROKER_HEADER: f"{quote(broker, safe='')} {position_text(generation)}"}


def parse_generation_header(text: str) -> tuple[str, Position]:
    name, _, generation = text.partition(" ")
    try:
        return unquote(name, errors="strict"), parse_position(generation)
    except (InputError, UnicodeDecodeError):
        raise InputError(f"{BROKER_HEADER}: must be a broker's name and its generation, such as v.b 17-3") from None
