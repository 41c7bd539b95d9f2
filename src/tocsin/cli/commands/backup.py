"""`tocsin backup` and `tocsin restore`: save a cluster with all its data, and restore it; both verify what they write.

A cluster that runs on the data folder writes the backup itself and goes on working. Without one, the command reads the
folder directly.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Protocol

from cyclopts import Parameter

from tocsin.cli.client import ClusterConnection
from tocsin.cli.options import ClusterToken, DataOption, NamedClusterUrl, SettingsFile, read_settings
from tocsin.cli.output import progress_bar
from tocsin.settings import Settings
from tocsin.wire.errors import InputError, NotFoundError, UnavailableError


def backup(
    destination: Annotated[
        Path, Parameter(help="A new folder, or a new file whose name ends with .tar, on the cluster's machine.")
    ],
    /,
    *,
    data: DataOption = None,
    config: SettingsFile = None,
    url: NamedClusterUrl = None,
    token: ClusterToken = None,
) -> None:
    """Save a cluster with all its data, running or not, and verify what was written."""
    from rich.progress import DownloadColumn, TransferSpeedColumn

    from tocsin import compose

    settings = read_settings(config, data=data).settings
    address = choose_address(settings, data, url, compose.folder_holder)
    # The cluster has another working directory.
    target = destination.absolute()
    with progress_bar("backing up", DownloadColumn, TransferSpeedColumn) as update:
        if address is not None:
            summary = asyncio.run(call_cluster(address, token, "/v1/backup", {"to": str(target)}))
        else:
            summary = asyncio.run(
                compose.offline_backup(settings, target, lambda done, total: update(completed=done, total=total))
            )
    sys.stdout.write(f"backup written to {target}: {_describe(summary)}\n")


def restore(
    source: Annotated[Path, Parameter(help='The folder or file that "tocsin backup" wrote.')],
    /,
    *,
    data: DataOption = None,
    config: SettingsFile = None,
) -> None:
    """Restore a backup into a new or empty data folder, after checking all of it."""
    from rich.progress import DownloadColumn, TransferSpeedColumn

    from tocsin import compose

    settings = read_settings(config, data=data).settings
    with progress_bar("restoring", DownloadColumn, TransferSpeedColumn) as update:
        summary = asyncio.run(
            compose.restore(settings, source.absolute(), lambda done, total: update(completed=done, total=total))
        )
    sys.stdout.write(f"restored into {settings.data}: {_describe(summary)}\n")


class _FolderOwner(Protocol):
    """The process that works on a data folder; without an address it does not serve."""

    @property
    def pid(self) -> int | None: ...
    @property
    def address(self) -> str | None: ...


def choose_address(
    settings: Settings, data: Path | None, url: str | None, find_holder: Callable[[Settings], _FolderOwner | None]
) -> str | None:
    """Returns the address of the cluster to ask: the named one, or the one that works on the folder. Returns None if
    none does, and the command may work on the folder itself."""
    if url is not None and data is not None:
        raise InputError("--url and --data cannot be given together")
    named = url if data is not None else url or os.environ.get("TOCSIN_URL")
    if named is not None:
        return named
    holder = find_holder(settings)
    if holder is None:
        if not settings.data.is_dir():
            raise NotFoundError(f"there is no data folder {settings.data}", hint="choose it with --data, or use --url")
        return None
    if holder.address is None:
        raise UnavailableError(
            f"the data folder {settings.data} is in use by process {holder.pid}, which does not serve",
            hint="try again in a moment",
        )
    return holder.address


async def call_cluster(
    url: str, token: str | None, path: str, body: Mapping[str, Any] | None = None
) -> Mapping[str, Any]:
    """Posts one request to a cluster and waits for its answer, however long that takes."""
    async with ClusterConnection(url, token) as client:
        return await client.call("POST", path, body)


def _describe(summary: Mapping[str, Any]) -> str:
    count = summary["datasets"]
    size = size_text(summary["size_bytes"])
    # An older cluster does not report brokers.
    brokers = summary.get("brokers", 0)
    saved = f"{brokers:,} broker{'' if brokers == 1 else 's'}, " if brokers else ""
    return (
        f"{count:,} dataset{'' if count == 1 else 's'}, {summary['rows']:,} rows, {saved}{size} in "
        f"{summary['files']:,} files of {summary['created_at'][:19]}; every checksum agrees"
    )


def size_text(size_bytes: int) -> str:
    size, unit = float(size_bytes), "B"
    for larger in ("KB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size_bytes:,} B" if unit == "B" else f"{size:,.1f} {unit}"
