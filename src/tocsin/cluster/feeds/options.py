"""Parses and checks the options of `CREATE FEED … WITH {…}`. The names are those of AsterixDB."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tocsin.cluster.feeds.adapters import file_options
from tocsin.cluster.feeds.adapters.file_options import FileOptions, check_file_options
from tocsin.cluster.feeds.adapters.url_options import POLLED, UrlOptions, check_url_options
from tocsin.pipeline.sources.decoder import FORMATS
from tocsin.wire.errors import InputError

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
COMMON: Final = ("adapter-name", "type-name", "format")
LINES: Final = ("csv", "delimited-text")
STREAMED: Final = ("json", "adm", *LINES)
_SAME_ADAPTER: Final = {"http": HTTP, "socket": SOCKET, "url": URL}  # short names of newer scripts


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
        return self.format in LINES

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


def feed_options(given: Mapping[str, Any]) -> FeedOptions:
    """Checks the options. InputError names the wrong option."""
    texts = {name: _text(name, value) for name, value in given.items()}
    adapter = texts.get("adapter-name", "")
    adapter = _SAME_ADAPTER.get(adapter, adapter)
    if adapter not in ADAPTERS:
        raise InputError(f'adapter-name: must be one of {", ".join(ADAPTERS)}, got "{adapter}"')
    if not texts.get("type-name"):
        raise InputError("type-name: must name the type of the feed's records")
    format_ = texts.get("format", "json").lower()
    formats = POLLED if adapter == URL else file_options.FORMATS if adapter == FILES else FORMATS
    if format_ not in formats:
        raise InputError(f'format: must be one of {", ".join(formats)}, got "{format_}"')
    if adapter == SOCKET and format_ not in STREAMED:
        raise InputError(f'format: a socket takes one of {", ".join(STREAMED)}, got "{format_}"')
    known_options = (*COMMON, *ADAPTERS[adapter], *formats[format_])
    for name in texts:
        if name not in known_options:
            raise InputError(f"unknown option {name}", hint=f"known here: {', '.join(known_options)}")
    if texts.get("address-type", "IP").upper() != "IP":
        raise InputError('address-type: must be "IP"')
    reading = {name: texts[name] for name in formats[format_] if name in texts}
    sockets = _sockets(texts.get("sockets", "")) if adapter == SOCKET else ()
    polled = check_url_options(texts, format_) if adapter == URL else None
    files = check_file_options(texts, format_, reading) if adapter == FILES else None
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
