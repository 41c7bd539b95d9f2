"""No connection of ours ends in a private network unless the operator has allowed that."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Any

import aiohttp
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from tocsin.serving.address_guard import UNGUARDED, AddressGuard, PrivateAddressError, is_public
from tocsin.serving.addresses import NO_NETWORKS, Networks
from tocsin.wire.errors import InputError

STRICT = AddressGuard("x.private", NO_NETWORKS)
PRIVATE = (
    "127.0.0.1 127.8.8.8 0.0.0.0 10.1.2.3 172.16.0.1 192.168.0.1 169.254.169.254 100.100.100.200 192.0.0.192 "
    "168.63.129.16 224.0.0.1 239.255.255.255 255.255.255.255 240.0.0.1 :: ::1 fe80::1 fd00:ec2::254 fc00::1 fec0::1 "
    "ff02::1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::127.0.0.1 64:ff9b::7f00:1 64:ff9b::a00:1 64:ff9b:1::1 2002:7f00:1::1 "
    "2002:a00:1::1 2001:db8::1 3fff::1 3fff:fff:ffff::1"
).split()
PUBLIC = "1.1.1.1 8.8.8.8 3fff:1000::1 2606:4700:4700::1111 ::ffff:8.8.8.8 64:ff9b::808:808".split()


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_that_is_not_of_the_internet_is_private_in_every_disguise(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", PUBLIC)
def test_an_address_of_the_internet_is_not(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST", "localhost.", "a.localhost", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0x7f.1",
     "10.1", "[::1]", "[::ffff:10.0.0.1]", "[64:ff9b::7f00:1]", "169.254.169.254", "0", "１２７.0.0.1",
     "127。0。0。1", "①②⑦.1", "ｌocalhost"],
)  # fmt: skip
def test_what_is_seen_to_be_private_is_refused_when_it_is_named(host: str) -> None:
    with pytest.raises(InputError) as refused:
        STRICT.check(f"http://{host}:8080/x")
    assert "x.private" in str(refused.value.hint)
    UNGUARDED.check(f"http://{host}:8080/x")


def test_names_and_public_addresses_pass_until_they_are_connected_to() -> None:
    for host in ("example.org", "8.8.8.8", "[2606:4700:4700::1111]", "local-host"):
        STRICT.check(f"https://{host}/x")


@pytest.mark.parametrize(
    ("private", "loopback", "allowed"),
    [("auto", True, True), ("auto", False, False), ("allowed", False, True), ("refused", True, False)],
)
def test_what_the_setting_says(private: str, loopback: bool, allowed: bool) -> None:
    guard = AddressGuard.of(private, "x", loopback=loopback)
    assert guard.allows(ipaddress.ip_address("10.0.0.1")) is allowed
    assert guard.allows(ipaddress.ip_address("8.8.8.8"))


def test_single_networks_can_be_allowed() -> None:
    guard = AddressGuard.of("10.0.0.0/8 ::1", "x", loopback=False)
    found = {address: guard.allows(ipaddress.ip_address(address)) for address in ("10.9.9.9", "::1", "127.0.0.1")}
    assert found == {"10.9.9.9": True, "::1": True, "127.0.0.1": False}


def test_an_address_can_be_allowed_at_one_port_alone() -> None:
    guard = AddressGuard.of("127.0.0.1:8480 [::1]:8480 10.0.0.0/8", "x", loopback=False)
    refused = "http://127.0.0.1:8481/ http://127.0.0.1/ http://localhost:8481/ http://127.0.0.2:8480/ http://[::1]/"
    for url in "http://127.0.0.1:8480/ http://localhost:8480/ http://[::1]:8480/ http://10.1.1.1/".split():
        guard.check(url)
    for url in refused.split():
        with pytest.raises(InputError):
            guard.check(url)


async def test_a_connection_to_another_port_is_refused() -> None:
    async with await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        guard = AddressGuard.of(f"127.0.0.1:{port}", "x", loopback=False)
        async with aiohttp.ClientSession(connector=guard.connector()) as session:
            with pytest.raises(aiohttp.ServerDisconnectedError):
                await session.get(f"http://127.0.0.1:{port}/")
            with pytest.raises(aiohttp.ClientConnectorError) as refused:
                await session.get("http://127.0.0.1:1/")
            assert isinstance(refused.value.__cause__, PrivateAddressError)


def test_the_error_says_what_is_private_and_how_it_is_allowed() -> None:
    with pytest.raises(InputError, match=r"the broker's address 10\.1\.2\.3 is private") as refused:
        STRICT.check("http://10.1.2.3:8480/", "the broker's address")
    assert 'x.private = "10.1.2.3"' in str(refused.value.hint)


class Names(AbstractResolver):
    """A resolver that everybody can own: whatever is asked for is on this machine."""

    async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_INET) -> list[ResolveResult]:
        return [{"hostname": host, "host": "127.0.0.1", "port": port, "family": socket.AF_INET, "proto": 0, "flags": 0}]

    async def close(self) -> None:
        return None


@pytest.mark.parametrize(
    "host", ["inside.example", "127.0.0.1", "127.1", "2130706433", "0x7f000001", "[::ffff:7f00:1]"]
)
async def test_a_connection_is_refused_by_the_address_that_it_would_have(host: str) -> None:
    connections: list[Any] = []

    async def connected(_reader: Any, writer: asyncio.StreamWriter) -> None:
        connections.append(writer.get_extra_info("peername"))
        writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with aiohttp.ClientSession(connector=STRICT.connector(resolver=Names())) as session:
            with pytest.raises(aiohttp.ClientError) as refused:
                await session.get(f"http://{host}:{port}/")
        # Old forms of addresses may be refused by the library already.
        if isinstance(refused.value, aiohttp.ClientConnectorError) or not host.replace(".", "").isdecimal():
            assert isinstance(refused.value.__cause__, PrivateAddressError)
            assert "x.private" in str(refused.value)
    assert connections == []


async def test_what_is_allowed_is_connected_to() -> None:

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    guard = AddressGuard("x", Networks(["127.0.0.0/8"]))
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with (
            aiohttp.ClientSession(connector=guard.connector()) as session,
            session.get(f"http://127.0.0.1:{port}/") as response,
        ):
            assert response.status == 204
