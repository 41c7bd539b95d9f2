"""Checks the options of a feed of files: which paths it watches, and how often."""

from __future__ import annotations

import glob
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from tocsin.cluster.feeds import periods
from tocsin.pipeline.landing import file_records
from tocsin.pipeline.sources.load_files import without_hosts
from tocsin.wire.errors import InputError, NotFoundError

FORMATS: Final = file_records.FORMATS
PERIOD_S: Final = 1.0
LEAST_PERIOD_S: Final = 0.1
_HERE: Final = ("", "localhost", "127.0.0.1", "file")


@dataclass(frozen=True, slots=True)
class FileOptions:
    paths: tuple[str, ...]
    reading: file_records.FileFormat
    period_s: float = PERIOD_S

    def check(self) -> None:
        """Raises NotFoundError if a path does not exist. A pattern may match nothing yet."""
        for path in self.paths:
            if not glob.has_magic(path) and not Path(path).exists():
                raise NotFoundError(
                    f"there is no file or folder {path}", hint="the path is one of the machine that the cluster runs on"
                )


def check_file_options(texts: Mapping[str, str], format: str, reading: Mapping[str, str]) -> FileOptions:  # noqa: A002
    """Checks the options. InputError names the wrong option."""
    _check_hosts(texts.get("path", ""))
    paths = tuple(_absolute(path) for path in without_hosts(texts.get("path", "")))
    if not paths:
        raise InputError('path: must name a file or a folder, such as "localhost:///data/incoming"')
    for index, path in enumerate(paths):
        for other in paths[:index] + paths[index + 1 :]:
            if PurePosixPath(path).is_relative_to(other):
                raise InputError(f"path: {path} is in {other}: its files would be taken twice")
    period_s = periods.period_s(texts["period"], LEAST_PERIOD_S) if "period" in texts else PERIOD_S
    return FileOptions(paths, file_records.check_format(format, reading), period_s)


def _absolute(path: str) -> str:
    if not path.startswith("/"):
        raise InputError(f'path: must be absolute, got "{path}"')
    return str(PurePosixPath(path))


def _check_hosts(text: str) -> None:
    """Requires that a host in a path is this machine: the cluster cannot read files of another."""
    for address in text.split(","):
        host, separator, _ = address.strip().partition("://")
        if separator and host.lower() not in _HERE:
            raise InputError(
                f'path: must be on the cluster\'s machine, got the host "{host}"', hint='write "localhost:///…"'
            )
