"""Parses and checks the options of `CREATE FEED … WITH {…}`. The names are those of AsterixDB."""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import urlsplit

from tocsin.cluster.feeds.limits import USUAL_LIMITS
from tocsin.pipeline.landing import file_records
from tocsin.pipeline.sources import items
from tocsin.pipeline.sources.decoder import FORMATS
from tocsin.pipeline.sources.load_files import without_hosts
from tocsin.rules.model.values import parse_duration
from tocsin.wire.errors import InputError, NotFoundError

HTTP: Final = "http_adapter"
SOCKET: Final = "socket_adapter"
URL: Final = "url_adapter"
FILES: Final = "localfs"

# The options of each adapter; the options of the format come on top.
ADAPTERS: Final[dict[str, tuple[str, ...]]] = {
    HTTP: (),
    SOCKET: ("sockets", "address-type"),
    URL: ("url", "period"),
    FILES: ("path", "period"),
}
_COMMON: Final = ("adapter-name", "type-name", "format")
_LINES: Final = ("csv", "delimited-text")
_STREAMED: Final = ("json", "adm", *_LINES)
_SAME_ADAPTER: Final = {"http": HTTP, "socket": SOCKET, "url": URL}  # short names of newer scripts
# The formats of an answer, with the options of each: none.
_POLLED: Final[Mapping[str, tuple[str, ...]]] = dict.fromkeys(items.FORMATS, ())


# How often an adapter polls.
_FILES_PERIOD_S: Final = 1.0
_FILES_LEAST_PERIOD_S: Final = 0.1
_URL_PERIOD_S: Final = 60.0
_MOST_PERIOD_S: Final = 31 * 86_400.0
_SECONDS: Final = re.compile(r"\d{1,9}(\.\d{1,9})?")

_HERE: Final = ("", "localhost", "127.0.0.1", "file")  # names of the cluster's machine in a path
_URL_CHARACTERS: Final = 8_000


@dataclass(frozen=True, slots=True)
class UrlOptions:
    url: str
    format: str
    period_s: float = _URL_PERIOD_S

    @property
    def host(self) -> str:
        """The part of the URL that may be logged: the rest may contain a secret."""
        return urlsplit(self.url).hostname or ""


@dataclass(frozen=True, slots=True)
class FileOptions:
    paths: tuple[str, ...]
    reading: file_records.FileFormat
    period_s: float = _FILES_PERIOD_S

    def check(self) -> None:
        """Raises NotFoundError if a path does not exist. A pattern may match nothing yet."""
        for path in self.paths:
            if not glob.has_magic(path) and not Path(path).exists():
                raise NotFoundError(
                    f"there is no file or folder {path}", hint="the path is one of the machine that the cluster runs on"
                )


@dataclass(frozen=True, slots=True)
class FeedOptions:
    adapter: str
    type_name: str
    format: str
    reading: Mapping[str, str]
    """The options of the format."""
    sockets: tuple[tuple[str, int], ...] = ()
    polling: UrlOptions | None = None
    files: FileOptions | None = None

    @property
    def by_lines(self) -> bool:
        """Whether a record of a stream is a line. Otherwise a record ends at its closing brace."""
        return self.format in _LINES

    @property
    def has_header(self) -> bool:
        """Whether the first line names the columns."""
        return self.by_lines and self.reading.get("header", str(self.format == "csv")).strip().lower() == "true"

    def written(self) -> dict[str, Any]:
        """Describes the format, as far as a client needs it to split a text into records."""
        description: dict[str, Any] = {"adapter": self.adapter, "format": self.format}
        if self.by_lines:
            description |= {"header": self.has_header, "quote": self.reading.get("quote", '"')}
        return description


def feed_options(given: Mapping[str, Any], least_poll_s: float = USUAL_LIMITS.least_poll_period_s) -> FeedOptions:
    """Checks the options. InputError names the wrong option."""
    texts = {name: _text(name, value) for name, value in given.items()}
    adapter = texts.get("adapter-name", "")
    adapter = _SAME_ADAPTER.get(adapter, adapter)
    if adapter not in ADAPTERS:
        raise InputError(f'adapter-name: must be one of {", ".join(ADAPTERS)}, got "{adapter}"')
    if not texts.get("type-name"):
        raise InputError("type-name: must name the type of the feed's records")
    format_ = texts.get("format", "json").lower()
    formats = _POLLED if adapter == URL else file_records.FORMATS if adapter == FILES else FORMATS
    if format_ not in formats:
        raise InputError(f'format: must be one of {", ".join(formats)}, got "{format_}"')
    if adapter == SOCKET and format_ not in _STREAMED:
        raise InputError(f'format: a socket takes one of {", ".join(_STREAMED)}, got "{format_}"')
    known_options = (*_COMMON, *ADAPTERS[adapter], *formats[format_])
    for name in texts:
        if name not in known_options:
            raise InputError(f"unknown option {name}", hint=f"known here: {', '.join(known_options)}")
    if texts.get("address-type", "IP").upper() != "IP":
        raise InputError('address-type: must be "IP"')
    reading = {name: texts[name] for name in formats[format_] if name in texts}
    sockets = _sockets(texts.get("sockets", "")) if adapter == SOCKET else ()
    polled = _url_options(texts, format_, least_poll_s) if adapter == URL else None
    files = _file_options(texts, format_, reading) if adapter == FILES else None
    return FeedOptions(adapter, texts["type-name"], format_, reading, sockets, polled, files)


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int):
        return str(value)
    raise InputError(f"{name}: must be a text, got {type(value).__name__}")


def _sockets(text: str) -> tuple[tuple[str, int], ...]:
    addresses = []
    for address in text.split(","):
        host, _, port = address.strip().rpartition(":")
        if not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
            raise InputError(f'sockets: must be "host:port", got "{text}"')
        addresses.append((host.strip("[]"), int(port)))
    return tuple(addresses)


def _url_options(texts: Mapping[str, str], format_: str, least_s: float) -> UrlOptions:
    period_s = _period_s(texts["period"], least_s) if "period" in texts else _URL_PERIOD_S
    return UrlOptions(_address(texts.get("url", "").strip()), format_, period_s)


def _address(text: str) -> str:
    try:
        parts = urlsplit(text)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_valid = False
    if not is_valid or len(text) > _URL_CHARACTERS or not text.isprintable() or " " in text:
        raise InputError('url: must be an address such as "https://example.org/items.json"')
    return text


def _file_options(texts: Mapping[str, str], format_: str, reading: Mapping[str, str]) -> FileOptions:
    _check_hosts(texts.get("path", ""))
    paths = tuple(_absolute(path) for path in without_hosts(texts.get("path", "")))
    if not paths:
        raise InputError('path: must name a file or a folder, such as "localhost:///data/incoming"')
    for index, path in enumerate(paths):
        for other in paths[:index] + paths[index + 1 :]:
            if PurePosixPath(path).is_relative_to(other):
                raise InputError(f"path: {path} is in {other}: its files would be taken twice")
    period_s = _period_s(texts["period"], _FILES_LEAST_PERIOD_S) if "period" in texts else _FILES_PERIOD_S
    return FileOptions(paths, file_records.check_format(format_, reading), period_s)


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


def _period_s(text: str, least_s: float) -> float:
    """Parses the option `period`: a duration, or a number of seconds. Raises InputError if it is out of bounds."""
    stripped = text.strip()
    if _SECONDS.fullmatch(stripped):
        seconds = float(stripped)
    else:
        try:
            duration = parse_duration(stripped)
        except ValueError:
            raise InputError(f'period: must be a duration such as "PT1M", or seconds, got "{text}"') from None
        if duration.months:
            raise InputError(f'period: months are of no fixed length; say it in days, got "{text}"')
        seconds = duration.micros / 1e6
    if not least_s <= seconds <= _MOST_PERIOD_S:
        raise InputError(f'period: must be from {least_s:g} s to {_MOST_PERIOD_S / 86_400:g} days, got "{text}"')
    return seconds
