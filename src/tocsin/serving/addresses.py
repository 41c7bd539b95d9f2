"""Client addresses: which addresses share a limit, and what proxies say of their clients.

A forwarded request never counts as a local one, not even from a loopback address. Only a trusted proxy is believed when
it names its client.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from aiohttp import HttpVersion11, hdrs, web

_UNKNOWN: Final = "unknown"
_OWN_BITS: Final = 64
"""The length of the IPv6 prefix that identifies a client: a client usually has the whole network."""

IpAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

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
"""The number of hops that are examined, from the last one on."""


class Networks:
    """A set of addresses and networks, as settings list them."""

    def __init__(self, named: Iterable[str] = ()) -> None:
        self._networks = tuple(ipaddress.ip_network(text, strict=False) for text in named)

    def __contains__(self, address: object) -> bool:
        if not self._networks:
            return False
        parsed = parse_address(address) if isinstance(address, str) else address
        return parsed is not None and any(parsed in network for network in self._networks)

    def __bool__(self) -> bool:
        return bool(self._networks)


NO_NETWORKS: Final = Networks()

# The trusted proxies of the application that serves a request.
TRUSTED_PROXIES: Final = web.AppKey("TRUSTED_PROXIES", Networks)


def parse_address(text: str | None) -> IpAddress | None:
    """The address, with an IPv4-mapped IPv6 address as IPv4; None if the text is not an address."""
    try:
        parsed = ipaddress.ip_address((text or "").partition("%")[0])
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return mapped or parsed


def address_key(address: str | None) -> str:
    """The unit that address limits count: the address itself for IPv4, its /64 network for IPv6."""
    if not address:
        return _UNKNOWN
    if ":" not in address:
        return address
    parsed = parse_address(address)
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((int(parsed) >> _OWN_BITS << _OWN_BITS, _OWN_BITS)))
    return address if parsed is None else str(parsed)


def is_loopback(address: str | None) -> bool:
    """Whether it is a loopback address of this machine."""
    parsed = parse_address(address)
    return parsed is not None and parsed.is_loopback


def is_forwarded(request: web.Request) -> bool:
    """Whether a proxy forwarded the request, as far as it shows: it says so, is a trusted proxy, or speaks HTTP/1.0, as
    nginx does to upstream servers by default."""
    if request.version < HttpVersion11 or request.remote in _trusted(request):
        return True
    return any(name.lower() in _FORWARDING or name.lower().startswith(_FORWARDING_PREFIX) for name in request.headers)


def is_local_program(request: web.Request) -> bool:
    """Whether, on a loopback server, only a local program can have sent the request: no proxy and no web page."""
    return not is_of_web_page(request) and not is_forwarded(request)


def is_of_web_page(request: web.Request) -> bool:
    """Whether a page of another origin sent the request, according to the browser's headers."""
    site = request.headers.get(_SEC_FETCH_SITE, "none")
    return hdrs.ORIGIN in request.headers or site.lower() not in ("none", "same-origin")


def client_address(request: web.Request) -> str | None:
    """The client's address: the peer, or behind trusted proxies the last hop before them."""
    trusted = _trusted(request)
    client = request.remote
    if client not in trusted:
        return client
    for count, hop in enumerate(_hops(request)):
        hop_address = parse_address(hop)
        # Hops beyond this one are claims of an untrusted client.
        if hop_address is None or count >= _HOPS_LIMIT:
            break
        client = str(hop_address)
        if hop_address not in trusted:
            break
    return client


def _trusted(request: web.Request) -> Networks:
    return request.app.get(TRUSTED_PROXIES, NO_NETWORKS)


def _hops(request: web.Request) -> Iterator[str]:
    """The addresses of the hops, the last one first."""
    if headers := request.headers.getall(_X_FORWARDED_FOR, []):
        hops = ",".join(headers).split(",")
    elif headers := request.headers.getall(hdrs.FORWARDED, []):
        elements = ",".join(headers).split(",")
        hops = [match[1] if (match := _FORWARDED_FOR.search(element)) else "" for element in elements]
    else:
        hops = request.headers.getall(_X_REAL_IP, [])[-1:]
    return (_without_port(hop) for hop in reversed(hops))


def _without_port(hop: str) -> str:
    hop = hop.strip().strip('"').strip()
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop
