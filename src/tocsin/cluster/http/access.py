"""Who may reach the servers of a cluster, and within which limits: its own server, and the ports of feeds.

The ports of feeds follow the same settings as the cluster's own server, so that no port is left open by oversight.
"""

from __future__ import annotations

from typing import Final

from aiohttp.typedefs import Middleware

from tocsin.serving.addresses import Networks
from tocsin.serving.authentication import TokenLookup, optional_authentication, token_authentication
from tocsin.serving.limits import ServerLimits
from tocsin.settings import ClusterSettings

_OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})


def server_limits(settings: ClusterSettings) -> ServerLimits:
    return ServerLimits(
        body_limit_bytes=settings.http.body_limit_bytes,
        bodies_limit_bytes=settings.http.bodies_limit_bytes,
        connections_limit=settings.http.connections_limit,
        address_connections_limit=settings.http.address_connections_limit,
        read_timeout_s=settings.http.read_timeout_s,
        write_timeout_s=2 * settings.statements.write_timeout_s,
        trusted_proxies=Networks(settings.http.trusted_proxies.split()),
    )


def server_authentication(settings: ClusterSettings, credentials: TokenLookup) -> Middleware:
    """The authentication of the cluster's own server."""
    if settings.token_needed:
        return token_authentication(credentials, _OPEN_PATHS)
    return optional_authentication(
        credentials, _OPEN_PATHS, loopback=settings.http.loopback, forwarded=settings.auth.mode == "off"
    )


def port_authentication(settings: ClusterSettings, credentials: TokenLookup, loopback: bool) -> Middleware:
    """The authentication of a feed's port, by the rule of the cluster's server: `auto` needs a token unless the port is
    on loopback and no proxy is trusted."""
    mode = settings.auth.mode
    if mode == "on" or (mode == "auto" and not (loopback and not settings.http.trusted_proxies.strip())):
        return token_authentication(credentials, ())
    return optional_authentication(credentials, (), loopback=loopback, forwarded=mode == "off")
