"""`tocsin backup` and `tocsin restore`: everything of a cluster, saved and brought back, checked.

A cluster that runs on the data folder is asked to write the backup itself and goes on working meanwhile; without one
the folder is read directly.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Protocol

import aiohttp
from cyclopts import Parameter

from tocsin.cli.client import ClusterConnection
from tocsin.settings import Settings
from tocsin.wire.errors import InputError, NotFoundError, UnavailableError

Data = Annotated[Path | None, Parameter(help="The cluster's data folder.")]
Config = Annotated[Path | None, Parameter(help="The settings file (default: ./tocsin.toml if there).")]

Progress = Callable[[int, int], None]


def backup(
    destination: Annotated[
        Path, Parameter(help="A new folder, or a new file whose name ends with .tar, on the cluster's machine.")
    ],
    /,
    *,
    data: Data = None,
    config: Config = None,
    url: Annotated[
        str | None, Parameter(help="Ask the cluster at this address instead (default: TOCSIN_URL, without --data).")
    ] = None,
    token: Annotated[
        str | None, Parameter(env_var="TOCSIN_TOKEN", help="A token; better given in TOCSIN_TOKEN.")
    ] = None,
) -> None:
    """Save everything of a cluster, running or not, and check what was written."""
    from tocsin import compose
    from tocsin.cli.logs import log_to_stderr

    log_to_stderr(for_good=False)
    settings = Settings.load(config, os.environ, {"data": data})
    address = choose_address(settings, data, url, compose.folder_holder)
    # The cluster has a working directory of its own.
    target = destination.absolute()
    with _progress("backing up") as on_progress:
        if address is not None:
            summary = asyncio.run(_ask(address, token, target))
        else:
            summary = asyncio.run(compose.offline_backup(settings, target, on_progress))
    sys.stdout.write(f"backup written to {target}: {_told(summary)}\n")


def restore(
    source: Annotated[Path, Parameter(help='What "tocsin backup" wrote.')],
    /,
    *,
    data: Data = None,
    config: Config = None,
) -> None:
    """Bring a backup back into a new or empty data folder, after checking all of it."""
    from tocsin import compose
    from tocsin.cli.logs import log_to_stderr

    log_to_stderr(for_good=False)
    settings = Settings.load(config, os.environ, {"data": data})
    with _progress("restoring") as on_progress:
        summary = asyncio.run(compose.restore(settings, source.absolute(), on_progress))
    sys.stdout.write(f"restored into {settings.data}: {_told(summary)}\n")


class FolderOwner(Protocol):
    """Who works on a data folder; without an address it does not serve."""

    @property
    def pid(self) -> int | None: ...
    @property
    def address(self) -> str | None: ...


def choose_address(
    settings: Settings, data: Path | None, url: str | None, find_holder: Callable[[Settings], FolderOwner | None]
) -> str | None:
    """The cluster to ask: the one that was named, or the one that works on the folder; None where none does, and the
    command may work on the folder itself."""
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


class _BackupClient(ClusterConnection):
    async def backup(self, target: Path) -> Mapping[str, Any]:
        """Ask for a backup, and wait until it is written and checked."""
        try:
            async with self._session.post(f"{self.url}/v1/backup", json={"to": str(target)}) as response:
                content = await response.read()
        except aiohttp.ClientError as error:
            raise self._unreachable(error) from None
        if response.status != 200 or response.content_type != "application/json":
            raise self._error_in(content, response.status)
        summary: Mapping[str, Any] = json.loads(content)
        return summary


async def _ask(url: str, token: str | None, target: Path) -> Mapping[str, Any]:
    async with _BackupClient(url, token) as client:
        return await client.backup(target)


def _told(summary: Mapping[str, Any]) -> str:
    count = summary["datasets"]
    size = size_text(summary["size_bytes"])
    # An older cluster that is asked does not know of brokers.
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


@contextmanager
def _progress(doing: str) -> Iterator[Progress]:
    """A bar on standard error while somebody looks at it; it says how far once it knows."""
    if not sys.stderr.isatty():
        yield lambda _done, _all: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done_bytes, all_bytes: bar.update(task, completed=done_bytes, total=all_bytes)
