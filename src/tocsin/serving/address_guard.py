"""Keeps what others give addresses for (webhooks, feeds that poll, brokers that are told) out of private networks.

The guard looks at the address of every connection when its socket is made: after names were resolved, in whatever form
an address was written, and at each redirect. `check` also refuses an address in a text as soon as somebody names it.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Collection, Iterable
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import structlog

from tocsin.serving.addresses import NO_NETWORKS, Address, Networks, parsed_address
from tocsin.serving.name_resolver import NameResolver
from tocsin.wire.addresses import parse_endpoint
from tocsin.wire.errors import InputError

_log = structlog.get_logger("tocsin.addresses")

# Ranges that Python's tables of all versions do not count as private, or that lead into another range.
_REFUSED: Final = Networks(
    (
        "100.64.0.0/10",  # carriers' own; the metadata of Alibaba's machines is here
        "192.0.0.0/24",  # special purposes; the metadata of Oracle's machines is here
        "192.88.99.0/24",
        "168.63.129.16",  # the metadata of Azure's machines
        "fec0::/10",
        "64:ff9b:1::/48",
        "3fff::/20",  # for documentation
    )
)
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_COMPATIBLE: Final = ipaddress.IPv6Network("::/96")


class PrivateAddressError(OSError):
    """A connection to an address that the settings do not allow."""


class AddressGuard:
    """`setting` names what allows private addresses; `allowed` are the networks that it allows, None: all; `endpoints`
    are addresses that it allows at one port alone."""

    def __init__(
        self, setting: str, allowed: Networks | None, endpoints: Collection[tuple[Address, int]] = frozenset()
    ) -> None:
        self._setting = setting
        self._allowed = allowed
        self._endpoints = frozenset(endpoints)

    @classmethod
    def of(cls, private: str, setting: str, *, loopback: bool) -> AddressGuard:
        """From what the setting says: `auto` (all where the server itself is on loopback), `allowed`, `refused`, or the
        networks and endpoints (`127.0.0.1:8480`) that are allowed."""
        if private == "allowed" or (private == "auto" and loopback):
            return cls(setting, None)
        if private in ("auto", "refused"):
            return cls(setting, NO_NETWORKS)
        endpoints = {text: endpoint for text in private.split() if (endpoint := parse_endpoint(text)) is not None}
        networks = Networks(text for text in private.split() if text not in endpoints)
        return cls(setting, networks, endpoints.values())

    def allows(self, address: Address, port: int | None = None) -> bool:
        if self._allowed is None or address in self._allowed or is_public(address):
            return True
        return port is not None and (address, port) in self._endpoints

    def check(self, url: str, what: str = "the address") -> None:
        """InputError for an address that is seen to be private without asking for its name. `what` it is the address
        of, for the message."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = parts.port or (443 if parts.scheme == "https" else 80)
        found = _written_address(host)
        named = host.rstrip(".") == "localhost" or host.rstrip(".").endswith(".localhost")
        if self._allowed is None or (found is None and not named):
            return
        loopback = (ipaddress.IPv4Address("127.0.0.1"), ipaddress.IPv6Address("::1"))
        if any(self.allows(address, port) for address in (loopback if found is None else (found,))):
            return
        raise InputError(
            f"{what} {host} is private: it is on this machine or in a private network",
            hint=f"the operator allows it with the setting {self._setting}, which lists networks: "
            f'{self._setting} = "{"127.0.0.1 ::1" if found is None else found}"',
        )

    def warn_of_stored(self, stored: Iterable[tuple[str, str]], what: str) -> None:
        """Log a warning for each name and address that was stored while it was allowed, and is not now."""
        for name, url in stored:
            try:
                self.check(url, what)
            except InputError as error:
                _log.warning(f"{what} is refused", name=name, reason=error.message, hint=error.hint)

    def connector(self, **options: Any) -> aiohttp.TCPConnector:
        """For sessions that connect to nothing but what is allowed."""
        own = {"resolver": NameResolver(), "use_dns_cache": False}
        return aiohttp.TCPConnector(socket_factory=self._socket, **{**own, **options})

    def _socket(self, place: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _, target = place
        found = parsed_address(str(target[0]))
        if found is None or not self.allows(found, int(target[1])):
            raise PrivateAddressError(
                errno.EACCES, f"{target[0]} is in a private network, see the setting {self._setting}"
            )
        return socket.socket(family, kind, protocol)


UNGUARDED: Final = AddressGuard("", None)


def is_public(address: Address) -> bool:
    """Whether it is one of the internet, and no other address in disguise that is not."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = _inner_addresses(address)
        if inner:
            return all(is_public(each) for each in inner)
    usable = address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)
    return usable and address not in _REFUSED


def _inner_addresses(address: ipaddress.IPv6Address) -> list[ipaddress.IPv4Address]:
    """The addresses of IPv4 that a packet to this one may end at."""
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    if address.sixtofour is not None:
        return [address.sixtofour]
    if address.teredo is not None:
        return list(address.teredo)
    if address in _NAT64 or address in _COMPATIBLE:
        return [ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)]
    return []


def _written_address(host: str) -> Address | None:
    """The address that a text is, also in the old forms that resolvers know: 127.1, 2130706433, 0x7f.1."""
    found = parsed_address(host)
    if found is None and host.isascii() and not any(letter.isspace() for letter in host):
        try:
            return ipaddress.IPv4Address(socket.inet_aton(host))
        except OSError:
            return None
    return found
