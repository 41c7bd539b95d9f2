"""Where a request comes from: who counts as one where limits are for an address, and what a proxy says of its clients.

A forwarded request is never taken for one of this machine's own, whatever address it comes from. Only of a proxy that
is trusted is it believed whom it forwards for.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from aiohttp import HttpVersion11, hdrs, web

UNKNOWN: Final = "unknown"
_OWN_BITS: Final = 64
"""Of an address of IPv6: who has one has all that begin with the same bits."""

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_FORWARDING: Final = frozenset({
    "forwarded", "via", "x-real-ip", "x-client-ip", "client-ip", "true-client-ip", "cf-connecting-ip", "cf-ray",
    "fastly-client-ip", "x-cluster-client-ip", "x-original-forwarded-for", "x-envoy-external-address",
})  # fmt: skip
_FORWARDING_PREFIX: Final = "x-forwarded-"
_SEC_FETCH_SITE: Final = "Sec-Fetch-Site"
_X_FORWARDED_FOR: Final = "X-Forwarded-For"
_X_REAL_IP: Final = "X-Real-IP"
_FORWARDED_FOR: Final = re.compile(r'(?:^|;)\s*for\s*=\s*("[^"]*"|[^;]*)', re.IGNORECASE)
_HOPS_LIMIT: Final = 32
"""Hops that are looked at, from the last one on."""


class Networks:
    """Addresses and networks, as settings name them."""

    def __init__(self, named: Iterable[str] = ()) -> None:
        self._networks = tuple(ipaddress.ip_network(text, strict=False) for text in named)

    def __contains__(self, address: object) -> bool:
        if not self._networks:
            return False
        found = parsed_address(address) if isinstance(address, str) else address
        return found is not None and any(found in network for network in self._networks)

    def __bool__(self) -> bool:
        return bool(self._networks)


NO_NETWORKS: Final = Networks()

# The proxies whose word is taken, of the application that serves a request.
TRUSTED_PROXIES: Final = web.AppKey("TRUSTED_PROXIES", Networks)


def parsed_address(text: str | None) -> Address | None:
    """The address in its plain form: one of IPv4 written as IPv6 is the one of IPv4. None where it is none."""
    try:
        found = ipaddress.ip_address((text or "").partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def place_of(address: str | None) -> str:
    """The same for all addresses that one can have for the asking: an address of IPv4 itself, of IPv6 its network."""
    if not address:
        return UNKNOWN
    if ":" not in address:
        return address
    found = parsed_address(address)
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((int(found) >> _OWN_BITS << _OWN_BITS, _OWN_BITS)))
    return address if found is None else str(found)


def is_own(address: str | None) -> bool:
    """Whether it is of this machine itself."""
    found = parsed_address(address)
    return found is not None and found.is_loopback


def is_forwarded(request: web.Request) -> bool:
    """Whether a proxy stands between the client and us, as far as that can be told: it says so, or is one that is
    trusted, or speaks HTTP/1.0, as nginx does to those behind it unless it is told otherwise."""
    if request.version < HttpVersion11 or request.remote in _trusted(request):
        return True
    return any(name.lower() in _FORWARDING or name.lower().startswith(_FORWARDING_PREFIX) for name in request.headers)


def is_local_program(request: web.Request) -> bool:
    """Whether, on a loopback server, it can only be a program of this machine that asks: no proxy and no web page."""
    return not is_of_web_page(request) and not is_forwarded(request)


def is_of_web_page(request: web.Request) -> bool:
    """Whether a page of another origin asks, as browsers say."""
    site = request.headers.get(_SEC_FETCH_SITE, "none")
    return hdrs.ORIGIN in request.headers or site.lower() not in ("none", "same-origin")


def client_address(request: web.Request) -> str | None:
    """Who asks: the peer, or where that is a trusted proxy, the last hop before those that are trusted."""
    trusted = _trusted(request)
    client = request.remote
    if client not in trusted:
        return client
    for count, hop in enumerate(_hops(request)):
        found = parsed_address(hop)
        # What follows is only what a stranger says.
        if found is None or count >= _HOPS_LIMIT:
            break
        client = str(found)
        if found not in trusted:
            break
    return client


def _trusted(request: web.Request) -> Networks:
    return request.app.get(TRUSTED_PROXIES, NO_NETWORKS)


def _hops(request: web.Request) -> Iterator[str]:
    """The addresses that a request came by, the last one first."""
    if named := request.headers.getall(_X_FORWARDED_FOR, []):
        hops = ",".join(named).split(",")
    elif named := request.headers.getall(hdrs.FORWARDED, []):
        elements = ",".join(named).split(",")
        hops = [found[1] if (found := _FORWARDED_FOR.search(element)) else "" for element in elements]
    else:
        hops = request.headers.getall(_X_REAL_IP, [])[-1:]
    return (_without_port(hop) for hop in reversed(hops))


def _without_port(hop: str) -> str:
    hop = hop.strip().strip('"').strip()
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop
