"""The brokers that `tocsin up` runs beside its cluster, as command lines."""

from __future__ import annotations

import sys
from contextlib import suppress
from ipaddress import ip_network
from pathlib import Path
from typing import Final

from tocsin.settings import Settings
from tocsin.wire.errors import InputError

MOST: Final = 64


def check_brokers(settings: Settings, count: int) -> None:
    """InputError where they could not run."""
    if not 0 <= count <= MOST:
        raise InputError(f"--brokers: must be from 0 to {MOST}, got {count}")
    if count and settings.cluster.token_needed and not settings.broker.cluster.token:
        raise InputError(
            "the cluster asks for tokens, and its brokers have none",
            hint='make one with "tocsin token create brokers --role broker" (--feeds names those that subscribers may '
            "publish to) and set broker.cluster.token",
        )


def broker_commands(
    settings: Settings, address: str, count: int, *, config: Path | None, verbose: bool
) -> dict[str, list[str]]:
    """Broker i is Default.broker<i>, at the i-th port from `broker.http.port` on, or at a free one where that is 0."""
    made = {}
    for number in range(1, count + 1):
        port = settings.broker.http.port
        arguments = [
            sys.executable, "-m", "tocsin.cli.main", "broker", "--name", f"Default.broker{number}",
            "--data", str(settings.data), "--port", str(port + number - 1 if port else 0), "--cluster", address,
            "--beside",
        ]  # fmt: skip
        if config is not None:
            arguments += ["--config", str(config)]
        if verbose:
            arguments.append("--verbose")
        made[f"Default.broker{number}"] = arguments
    return made


def told_on_this_machine(settings: Settings) -> Settings:
    """Settings with which the brokers beside a cluster can be told, also where that is not on loopback."""
    cluster = settings.cluster
    if cluster.channels.private != "auto" or cluster.http.loopback:
        return settings
    own = ["127.0.0.0/8", "::1/128", "0.0.0.0/32", "::/128"]
    with suppress(ValueError):
        own.append(str(ip_network(settings.broker.http.host)))
    channels = cluster.channels.model_copy(update={"private": " ".join(own)})
    return settings.model_copy(update={"cluster": cluster.model_copy(update={"channels": channels})})
