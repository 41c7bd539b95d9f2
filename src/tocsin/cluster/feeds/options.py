"""Parses and checks the options of `CREATE FEED … WITH {…}`. The names are those of AsterixDB.

Options of AsterixDB that have no meaning here are accepted, and noted in the statement's answer.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import urlsplit

from tocsin.cluster.feeds.limits import USUAL_LIMITS
from tocsin.pipeline.sources import items, load_files
from tocsin.pipeline.sources.decoder import FORMATS
from tocsin.rules.did_you_mean import did_you_mean
from tocsin.rules.model.values import parse_duration
from tocsin.wire.errors import InputError, NotFoundError

_HTTP: Final = "http_adapter"
_SOCKET: Final = "socket_adapter"
_URL: Final = "url_adapter"
_FILES: Final = "localfs"

# The options of each adapter; the options of the format come on top.
_ADAPTERS: Final[dict[str, tuple[str, ...]]] = {
    _HTTP: ("addresses", "address-type", "path"),
    _SOCKET: ("sockets", "address-type"),
    _URL: ("url", "period", "interval"),
    _FILES: ("path", "period"),
}
_COMMON: Final = ("adapter-name", "type-name", "format", "insert-feed")

# Options of AsterixDB without a meaning here, and what does their work.
_QUEUES: Final = "the feed's log takes records, up to its limit of bytes"
_ISLANDS: Final = (
    "START FEED asks no other cluster for a subscription; there, run CREATE BROKER … AT the feed's address WITH "
    '{"broker-type": "BAD"}, and SUBSCRIBE'
)
_WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "dynamic": "a feed's function always reads the current state of datasets",
    "queue-size": _QUEUES,
    "queue_size": _QUEUES,
    "wait-for-data": "the feed waits for records until it is stopped",
    "log-ingestion-events": "the cluster's metrics count records",
    "upsert-feed": "records are upserted unless insert-feed is true",
    "change-feed": "records are upserted; a feed removes none",
    "bad-host": _ISLANDS,
    "bad-channel": _ISLANDS,
    "bad-channel-parameters": _ISLANDS,
    "bad-dataverse": _ISLANDS,
}
# The policies of AsterixDB for CONNECT FEED … USING POLICY.
_POLICIES: Final = (
    "Basic", "BasicFT", "BasicMonitored", "Brittle", "Discard", "Spill", "Throttle", "Elastic", "AdvancedFT",
    "AdvancedFT_Discard", "AdvancedFT_Spill", "AdvancedFT_Elastic",
)  # fmt: skip
_POLICY_NOTE: Final = "every acknowledged record is durable, and a feed that is behind slows its publishers"
_LINES: Final = ("csv", "delimited-text")
_STREAMED: Final = ("json", "adm", *_LINES)
_SAME_ADAPTER: Final = {"http": _HTTP, "socket": _SOCKET, "url": _URL}  # short names of newer scripts
# The formats of an answer, with the options of each: none.
_POLLED: Final[Mapping[str, tuple[str, ...]]] = dict.fromkeys(items.FORMATS, ())


# How often an adapter polls.
_FILES_PERIOD_S: Final = 1.0
_FILES_LEAST_PERIOD_S: Final = 0.1
_URL_PERIOD_S: Final = 60.0
_MOST_PERIOD_S: Final = 31 * 86_400.0
_SECONDS: Final = re.compile(r"\d{1,9}(\.\d{1,9})?")

_HERE: Final = ("", "localhost", "127.0.0.1", "file")  # names of the cluster's machine in a path
_PATH: Final = re.compile(r"/[A-Za-z0-9._~/-]{0,500}")
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
    reading: load_files.FileFormat
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
    addresses: tuple[tuple[str, int], ...] = ()
    """Where the feed has a port of its own that takes HTTP POSTs, to the path `entry`."""
    entry: str = "/"
    inserts: bool = False
    """Whether a record whose key exists is set aside, and does not replace the other one."""
    notes: tuple[str, ...] = ()
    """Which options have no effect."""

    @property
    def by_lines(self) -> bool:
        """Whether a record of a stream is a line. Otherwise a record ends at its closing brace."""
        return self.format in _LINES

    @property
    def has_header(self) -> bool:
        """Whether the first line names the columns."""
        return self.by_lines and self.reading.get("header", str(self.format == "csv")).strip().lower() == "true"

    def describe(self) -> dict[str, Any]:
        """Describes the format, as far as a client needs it to split a text into records."""
        description: dict[str, Any] = {"adapter": self.adapter, "format": self.format}
        if self.by_lines:
            description |= {"header": self.has_header, "quote": self.reading.get("quote", '"')}
        return description


def feed_options(
    given: Mapping[str, Any],
    least_poll_s: float = USUAL_LIMITS.least_poll_period_s,
    node_host: str = USUAL_LIMITS.node_host,
) -> FeedOptions:
    """Checks the options. InputError names the wrong option. `node_host` is the host of AsterixDB's nodes: this
    machine."""
    texts = {name: _text(name, value) for name, value in given.items()}
    adapter = texts.get("adapter-name", "")
    adapter = _SAME_ADAPTER.get(adapter, adapter)
    if adapter not in _ADAPTERS:
        raise InputError(f'adapter-name: must be one of {", ".join(_ADAPTERS)}, got "{adapter}"')
    if not texts.get("type-name"):
        raise InputError("type-name: must name the type of the feed's records")
    format_ = texts.get("format", "json").lower()
    formats = _POLLED if adapter == _URL else load_files.FORMATS if adapter == _FILES else FORMATS
    if format_ not in formats:
        raise InputError(f'format: must be one of {", ".join(formats)}, got "{format_}"')
    if adapter == _SOCKET and format_ not in _STREAMED:
        raise InputError(f'format: a socket takes one of {", ".join(_STREAMED)}, got "{format_}"')
    _check_names(texts, (*_COMMON, *_ADAPTERS[adapter], *formats[format_]))
    reading = {name: texts[name] for name in formats[format_] if name in texts}
    addresses, notes = _addresses(adapter, texts, node_host)
    return FeedOptions(
        adapter, texts["type-name"], format_, reading,
        sockets=addresses if adapter == _SOCKET else (),
        polling=_url_options(texts, format_, least_poll_s) if adapter == _URL else None,
        files=_file_options(texts, format_, reading) if adapter == _FILES else None,
        addresses=addresses if adapter == _HTTP else (),
        entry=_entry(texts) if adapter == _HTTP else "/",
        inserts=_flag("insert-feed", texts.get("insert-feed", "false")),
        notes=(*notes, *_notes(texts)),
    )  # fmt: skip


def policy_note(policy: str) -> str:
    """Says that a policy of AsterixDB has no effect. Raises InputError if there is no such policy."""
    if policy.lower() not in [known.lower() for known in _POLICIES]:
        hint = did_you_mean(policy, _POLICIES) or f"known are {', '.join(_POLICIES)}; none has an effect here"
        raise InputError(f"there is no policy {policy}", hint=hint)
    return f"POLICY {policy} has no effect: {_POLICY_NOTE}"


def _check_names(texts: Mapping[str, str], known_options: Sequence[str]) -> None:
    for name in texts:
        if name not in known_options and name not in _WITHOUT_EFFECT:
            hint = did_you_mean(name, [*known_options, *_WITHOUT_EFFECT])
            raise InputError(f"unknown option {name}", hint=hint or f"known here: {', '.join(known_options)}")


def _notes(texts: Mapping[str, str]) -> list[str]:
    """Says once what several options have in common."""
    named: dict[str, list[str]] = {}
    for name in texts:
        if name in _WITHOUT_EFFECT:
            named.setdefault(_WITHOUT_EFFECT[name], []).append(name)
    return [
        f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} no effect: {instead}"
        for instead, names in named.items()
    ]


def _addresses(adapter: str, texts: Mapping[str, str], node_host: str) -> tuple[tuple[tuple[str, int], ...], list[str]]:
    """Returns where the feed listens, and notes. AsterixDB's `NC` names nodes, each of which is this machine here."""
    kind = texts.get("address-type", "IP").upper()
    if kind not in ("IP", "NC"):
        raise InputError(f'address-type: must be "IP" or "NC", got "{texts["address-type"]}"')
    name = "addresses" if adapter == _HTTP else "sockets"
    if adapter != _SOCKET and name not in texts:
        return (), []
    addresses = _sockets(name, texts.get(name, ""))
    if kind == "IP":
        return addresses, []
    ports = tuple((node_host, port) for _, port in addresses)
    nodes = ", ".join(dict.fromkeys(host for host, _ in addresses))
    shown = ", ".join(f"{host}:{port}" for host, port in ports)
    return ports, [f"address-type NC: {nodes} is this machine, and the feed listens at {shown}"]


def _entry(texts: Mapping[str, str]) -> str:
    path = texts.get("path", "/")
    if not _PATH.fullmatch(path):
        raise InputError(f'path: must begin with / and have letters, digits and ._~- only, got "{path[:100]}"')
    return path


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InputError(f'{name}: must be true or false, got "{text}"')
    return text.lower() == "true"


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int):
        return str(value)
    raise InputError(f"{name}: must be a text, got {type(value).__name__}")


def _sockets(name: str, text: str) -> tuple[tuple[str, int], ...]:
    addresses = []
    for address in text.split(","):
        host, _, port = address.strip().rpartition(":")
        if not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
            raise InputError(f'{name}: must be "host:port", got "{text}"')
        addresses.append((host.strip("[]"), int(port)))
    return tuple(addresses)


def _url_options(texts: Mapping[str, str], format_: str, least_s: float) -> UrlOptions:
    period = texts.get("period", texts.get("interval"))
    period_s = _URL_PERIOD_S if period is None else _period_s(period, least_s)
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
    written = ",".join(_of_node(address) for address in texts.get("path", "").split(","))
    paths = tuple(_absolute(path) for path in load_files.without_hosts(written))
    if not paths:
        raise InputError('path: must name a file or a folder, such as "localhost:///data/incoming"')
    for index, path in enumerate(paths):
        for other in paths[:index] + paths[index + 1 :]:
            if PurePosixPath(path).is_relative_to(other):
                raise InputError(f"path: {path} is in {other}: its files would be taken twice")
    period_s = _period_s(texts["period"], _FILES_LEAST_PERIOD_S) if "period" in texts else _FILES_PERIOD_S
    return FileOptions(paths, load_files.check_format(format_, reading), period_s)


def _of_node(address: str) -> str:
    """Replaces the name of one of AsterixDB's nodes: a path after it may be relative to where the node was started."""
    host, separator, path = address.strip().partition("://")
    if not separator or not load_files.NODE_NAME.fullmatch(host):
        return address
    return path if path.startswith("/") else str(Path.cwd() / path)


def _absolute(path: str) -> str:
    if not path.startswith("/"):
        raise InputError(f'path: must be absolute, got "{path}"')
    return str(PurePosixPath(path))


def _check_hosts(text: str) -> None:
    """Requires that a host in a path is this machine: the cluster cannot read files of another."""
    for address in text.split(","):
        host, separator, _ = address.strip().partition("://")
        if separator and host.lower() not in _HERE and not load_files.NODE_NAME.fullmatch(host):
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
