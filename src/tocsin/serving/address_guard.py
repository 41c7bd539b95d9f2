"""Guards outgoing connections to addresses that clients supply (webhooks, polled feeds, broker callbacks) against SSRF:
they must not lead into private networks.

The guard checks the address of every connection when its socket is created: after DNS resolution, for every notation of
an address, and at every redirect. `check` also refuses a private address in a URL as soon as a client names it.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import unicodedata
from collections.abc import Collection, Iterable
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import structlog

from tocsin.serving.addresses import NO_NETWORKS, IpAddress, Networks, parse_address
from tocsin.serving.name_resolver import NameResolver
from tocsin.wire.addresses import parse_endpoint
from tocsin.wire.errors import InputError

_log = structlog.get_logger("tocsin.addresses")

# Ranges that not all Python versions count as private, or that lead into another range.
_REFUSED: Final = Networks(
    (
        "100.64.0.0/10",  # carrier-grade NAT; Alibaba Cloud's metadata service
        "192.0.0.0/24",  # special purposes; Oracle Cloud's metadata service
        "192.88.99.0/24",
        "168.63.129.16",  # Azure's metadata service
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
    """Decides to which addresses the server may connect.

    `setting` is the name of the setting that allows private addresses. `allowed` are the networks that it allows, None
    for all; `endpoints` are addresses that it allows at one port only.
    """

    def __init__(
        self, setting: str, allowed: Networks | None, endpoints: Collection[tuple[IpAddress, int]] = frozenset()
    ) -> None:
        self._setting = setting
        self._allowed = allowed
        self._endpoints = frozenset(endpoints)

    @classmethod
    def of(cls, private: str, setting: str, *, loopback: bool) -> AddressGuard:
        """Reads the setting: `auto` (all are allowed if the server itself is on loopback), `allowed`, `refused`, or a
        list of networks and endpoints (`127.0.0.1:8480`)."""
        if private == "allowed" or (private == "auto" and loopback):
            return cls(setting, None)
        if private in ("auto", "refused"):
            return cls(setting, NO_NETWORKS)
        endpoints = {text: endpoint for text in private.split() if (endpoint := parse_endpoint(text)) is not None}
        networks = Networks(text for text in private.split() if text not in endpoints)
        return cls(setting, networks, endpoints.values())

    def allows(self, address: IpAddress, port: int | None = None) -> bool:
        if self._allowed is None or address in self._allowed or is_public(address):
            return True
        return port is not None and (address, port) in self._endpoints

    def check(self, url: str, what: str = "the address") -> None:
        """Raises InputError for an address that is private without a DNS lookup. `what` names it in the message."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = parts.port or (443 if parts.scheme == "https" else 80)
        written = _written_address(host)
        host = unicodedata.normalize("NFKC", host).replace("\u3002", ".").lower()
        is_localhost = host.rstrip(".") == "localhost" or host.rstrip(".").endswith(".localhost")
        if self._allowed is None or (written is None and not is_localhost):
            return
        loopback = (ipaddress.IPv4Address("127.0.0.1"), ipaddress.IPv6Address("::1"))
        if any(self.allows(address, port) for address in (loopback if written is None else (written,))):
            return
        raise InputError(
            f"{what} {host} is private: it is on this machine or in a private network",
            hint=f"the operator allows it with the setting {self._setting}, which lists networks: "
            f'{self._setting} = "{"127.0.0.1 ::1" if written is None else written}"',
        )

    def warn_of_stored(self, stored: Iterable[tuple[str, str]], what: str) -> None:
        """Logs a warning for each stored address that was allowed once and no longer is."""
        for name, url in stored:
            try:
                self.check(url, what)
            except InputError as error:
                _log.warning(f"{what} is refused", name=name, reason=error.message, hint=error.hint)

    def connector(self, **options: Any) -> aiohttp.TCPConnector:
        """A connector that connects to allowed addresses only."""
        defaults = {"resolver": NameResolver(), "use_dns_cache": False}
        return aiohttp.TCPConnector(socket_factory=self._socket, **{**defaults, **options})

    def _socket(self, info: tuple[Any, ...]) -> socket.socket:
        """Creates the socket of a connection, after its resolved address has been checked."""
        family, kind, protocol, _, target = info
        address = parse_address(str(target[0]))
        if address is None or not self.allows(address, int(target[1])):
            raise PrivateAddressError(
                errno.EACCES, f"{target[0]} is in a private network, see the setting {self._setting}"
            )
        return socket.socket(family, kind, protocol)


UNGUARDED: Final = AddressGuard("", None)


def is_public(address: IpAddress) -> bool:
    """Whether it is a public internet address, and does not embed a private one."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = _inner_addresses(address)
        if inner:
            return all(is_public(embedded) for embedded in inner)
    usable = address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)
    return usable and address not in _REFUSED


def _inner_addresses(address: ipaddress.IPv6Address) -> list[ipaddress.IPv4Address]:
    """The IPv4 addresses at which a packet to this address may end."""
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    if address.sixtofour is not None:
        return [address.sixtofour]
    if address.teredo is not None:
        return list(address.teredo)
    if address in _NAT64 or address in _COMPATIBLE:
        return [ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)]
    return []


def _written_address(host: str) -> IpAddress | None:
    """The address in a text, including the old notations that resolvers accept: 127.1, 2130706433, 0x7f.1, and digits
    and dots of other scripts, which they read as ours (IDNA)."""
    host = unicodedata.normalize("NFKC", host).replace("\u3002", ".")
    address = parse_address(host)
    if address is None and host.isascii() and not any(character.isspace() for character in host):
        try:
            return ipaddress.IPv4Address(socket.inet_aton(host))
        except OSError:
            return None
    return address
