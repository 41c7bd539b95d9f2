"""Who counts as one where limits are for an address."""

from __future__ import annotations

import ipaddress
from typing import Final

UNKNOWN: Final = "unknown"
_OWN_BITS: Final = 64
"""Of an address of IPv6: who has one has all that begin with the same bits."""


def place_of(address: str | None) -> str:
    """The same for all addresses that one can have for the asking: an address of IPv4 itself, of IPv6 its network."""
    if not address:
        return UNKNOWN
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found) >> _OWN_BITS << _OWN_BITS, _OWN_BITS)))


def is_own(address: str | None) -> bool:
    """Whether it is of this machine itself."""
    try:
        found = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback
