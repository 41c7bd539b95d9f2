"""The brokers that `tocsin up` runs beside its cluster: their command lines, and how they stop with the cluster.

Each broker is a process of its own. It watches its standard input, which closes when its parent ends for any reason, so
that no broker is left behind.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tocsin.settings import Settings
from tocsin.wire.errors import InputError

_MOST: Final = 64


def check_brokers(settings: Settings, count: int) -> None:
    """Raises `InputError` if the brokers could not run."""
    if not 0 <= count <= _MOST:
        raise InputError(f"--brokers: must be from 0 to {_MOST}, got {count}")
    if count and settings.cluster.token_needed and not settings.broker.cluster.token:
        folder = shlex.quote(str(settings.data.absolute()))
        raise InputError(
            "the cluster asks for tokens, and its brokers have none",
            hint=f"make one: tocsin token create brokers --role broker --data {folder} "
            "(--feeds names the feeds that subscribers may publish to); then set broker.cluster.token",
        )


def broker_commands(
    settings: Settings, address: str, count: int, *, config: Path | None, verbose: bool
) -> dict[str, list[str]]:
    """Returns the command of each broker by name.

    Broker i is Default.broker<i>, at the i-th port from `broker.http.port` on, or at a free port if that is 0.
    """
    commands = {}
    for number in range(1, count + 1):
        port = settings.broker.http.port
        arguments = [
            sys.executable, "-m", "tocsin.cli.main", "broker", "--name", f"Default.broker{number}",
            "--data", str(settings.data), "--port", str(port + number - 1 if port else 0), "--cluster", address,
            "--exit-with-stdin",
        ]  # fmt: skip
        if config is not None:
            arguments += ["--config", str(config)]
        if verbose:
            arguments.append("--verbose")
        commands[f"Default.broker{number}"] = arguments
    return commands


def exit_with_stdin() -> None:
    """Sends this process a SIGTERM when its standard input is closed: when its parent ends, however that happens."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def allow_supervised_brokers(settings: Settings, count: int) -> Settings:
    """Returns settings with which the cluster reaches the brokers beside it and no other private address, even if the
    cluster is not on loopback. A broker whose port is not known yet (0) is allowed at every port of its address."""
    cluster, broker = settings.cluster, settings.broker
    if cluster.channels.private != "auto" or cluster.http.loopback:
        return settings
    host, ports = broker.http.host, [broker.http.port + number for number in range(count)] if broker.http.port else []
    if broker.cluster.callback:
        parts = urlsplit(broker.cluster.callback)
        host, ports = parts.hostname or "", [parts.port or (443 if parts.scheme == "https" else 80)]
    allowed = [
        f"{f'[{address}]' if ':' in address else address}:{port}" if ports else address
        for address in _resolve(host) for port in ports or [0]
    ]  # fmt: skip
    channels = cluster.channels.model_copy(update={"private": " ".join(allowed) or "refused"})
    return settings.model_copy(update={"cluster": cluster.model_copy(update={"channels": channels})})


def _resolve(host: str) -> list[str]:
    try:
        return sorted({str(address[4][0]).partition("%")[0] for address in socket.getaddrinfo(host, None)})
    except OSError:
        return []
