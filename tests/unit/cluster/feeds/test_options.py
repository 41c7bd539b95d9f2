"""What `CREATE FEED … WITH {…}` may say, and how it is told what it may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tocsin.cluster.feeds.options import feed_options
from tocsin.wire.errors import InputError

HTTP = {"adapter-name": "http_adapter", "type-name": "T"}
SOCKET = {"adapter-name": "socket_adapter", "type-name": "T", "sockets": "127.0.0.1:10001"}
FILES = {"adapter-name": "localfs", "type-name": "T"}
URL = {"adapter-name": "url_adapter", "type-name": "T", "url": "https://example.org/items"}


def test_a_feed_reads_json_unless_told_otherwise() -> None:
    assert feed_options(HTTP).format == "json"


@pytest.mark.parametrize(
    ("short", "full"), [("http", "http_adapter"), ("socket", "socket_adapter"), ("url", "url_adapter")]
)
def test_the_short_names_of_adapters_mean_the_same(short: str, full: str) -> None:
    given = {"socket": SOCKET, "url": URL}.get(short, HTTP)
    assert feed_options({**given, "adapter-name": short}).adapter == full


def test_the_options_of_the_original_are_understood() -> None:
    options = feed_options({**SOCKET, "address-type": "IP", "format": "adm"})
    assert (options.format, options.sockets) == ("adm", (("127.0.0.1", 10001),))


def test_a_socket_feed_may_listen_at_several_places() -> None:
    options = feed_options({**SOCKET, "sockets": "127.0.0.1:10001, [::1]:10002"})
    assert options.sockets == (("127.0.0.1", 10001), ("::1", 10002))


def test_options_of_the_format_go_to_its_reader() -> None:
    options = feed_options({**HTTP, "format": "CSV", "delimiter": ";", "header": False})
    assert options.format == "csv"
    assert options.reading == {"delimiter": ";", "header": "false"}


@pytest.mark.parametrize(
    ("period", "expected_s"),
    [(None, 60.0), ("PT1M", 60.0), ("PT5M30S", 330.0), ("P1D", 86_400.0), ("90", 90.0), (90, 90.0), ("1.5", 1.5)],
)
def test_a_period_is_a_duration_or_seconds_and_a_minute_when_nothing_is_said(period: Any, expected_s: float) -> None:
    options = feed_options(URL if period is None else {**URL, "period": period})
    assert options.polling is not None
    assert options.polling.period_s == expected_s


@pytest.mark.parametrize(
    ("format_", "header", "expected"),
    [
        ("csv", None, True),
        ("csv", "false", False),
        ("delimited-text", None, False),
        ("delimited-text", "true", True),
        ("adm", None, False),
    ],
)
def test_only_lines_have_a_header(format_: str, header: str | None, expected: bool) -> None:
    options = feed_options({**SOCKET, "format": format_, **({} if header is None else {"header": header})})
    assert options.has_header is expected


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, 'adapter-name: must be one of http_adapter, socket_adapter, url_adapter, localfs, got ""'),
        ({"adapter-name": "url", "type-name": "T"}, "url: must be an address such as"),
        ({**URL, "url": "ftp://example.org/x"}, "url: must be an address such as"),
        ({**URL, "url": "https:///x"}, "url: must be an address such as"),
        ({**URL, "url": "https://example.org:99999/x"}, "url: must be an address such as"),
        ({**URL, "url": "https://example.org/a b"}, "url: must be an address such as"),
        ({**URL, "url": "https://example.org/\r\nX: y"}, "url: must be an address such as"),
        ({**URL, "format": "csv"}, "format: must be one of json, geojson, rss"),
        ({**HTTP, "format": "rss"}, 'got "rss"'),
        ({**HTTP, "url": "https://example.org"}, "unknown option url"),
        ({**URL, "sockets": "127.0.0.1:1"}, "unknown option sockets"),
        ({**URL, "delimiter": ";"}, "unknown option delimiter"),
        ({**URL, "period": "often"}, 'period: must be a duration such as "PT1M", or seconds, got "often"'),
        ({**URL, "period": "0"}, "period: must be from 1 s to 31 days"),
        ({**URL, "period": "-PT5M"}, "period: must be from 1 s to 31 days"),
        ({**URL, "period": "P60D"}, "period: must be from 1 s to 31 days"),
        ({**URL, "period": "P1M"}, "period: months are of no fixed length"),
        ({"adapter-name": "pigeon"}, 'got "pigeon"'),
        ({**FILES, "path": "otherhost:///data"}, 'path: must be on the cluster\'s machine, got the host "otherhost"'),
        ({**FILES, "path": "/data, 10.0.0.1:///data"}, 'got the host "10.0.0.1"'),
        ({"adapter-name": "http_adapter"}, "type-name: must name the type"),
        ({**HTTP, "type-name": ""}, "type-name: must name the type"),
        ({**HTTP, "format": "avro"}, 'got "avro"'),
        ({**HTTP, "colour": "red"}, "unknown option colour"),
        ({**HTTP, "sockets": "127.0.0.1:1"}, "unknown option sockets"),
        ({**HTTP, "delimiter": ";"}, "unknown option delimiter"),
        ({**HTTP, "format": ["json"]}, "format: must be a text, got list"),
        ({**HTTP, "type-name": None}, "type-name: must be a text"),
        ({**SOCKET, "address-type": "DNS"}, 'address-type: must be "IP" or "NC", got "DNS"'),
        ({**HTTP, "insert-feed": "perhaps"}, 'insert-feed: must be true or false, got "perhaps"'),
        ({**HTTP, "addresses": "127.0.0.1"}, 'addresses: must be "host:port"'),
        ({**HTTP, "addresses": ""}, 'addresses: must be "host:port"'),
        ({**HTTP, "path": "in"}, "path: must begin with /"),
        ({**HTTP, "path": "/{tail:.*}"}, "path: must begin with /"),
        ({**HTTP, "path": "/a?b"}, "path: must begin with /"),
        ({**SOCKET, "format": "xml"}, "format: a socket takes one of json, adm, csv, delimited-text"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as raised:
        feed_options(given)
    assert said in raised.value.message


@pytest.mark.parametrize(
    "sockets", ["", "here", "here:", ":10001", "here:port", "here:65536", "here:-1", "a:1,,b:2", "a:²"]
)
def test_a_place_to_listen_at_is_a_host_and_a_port(sockets: str) -> None:
    with pytest.raises(InputError, match='sockets: must be "host:port"'):
        feed_options({**SOCKET, "sockets": sockets})


def test_an_http_feed_may_have_a_port_of_its_own() -> None:
    options = feed_options({**HTTP, "addresses": "127.0.0.1:10001", "address-type": "ip", "path": "/in"})
    assert (options.addresses, options.entry, options.sockets, options.notes) == (
        (("127.0.0.1", 10001),),
        "/in",
        (),
        (),
    )
    assert feed_options(HTTP).addresses == ()


@pytest.mark.parametrize("given", [{**HTTP, "addresses": "asterix_nc2:10002,asterix_nc1:10001"}, SOCKET])
def test_the_nodes_of_the_original_are_this_machine(given: dict[str, Any]) -> None:
    options = feed_options({**given, "address-type": "nc"}, node_host="::1")
    assert {host for host, _ in (*options.addresses, *options.sockets)} == {"::1"}
    (note,) = options.notes
    assert "is this machine" in note
    assert "::1:10001" in note


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("asterix_nc1:///data/tweets.txt", "/data/tweets.txt"),
        ("nc1:///data", "/data"),
        ("asterix_nc1://data/tweets.txt", f"{Path.cwd()}/data/tweets.txt"),
    ],
)
def test_a_path_may_name_a_node_of_the_original(path: str, expected: str) -> None:
    options = feed_options({**FILES, "path": path})
    assert options.files is not None
    assert options.files.paths == (expected,)


def test_options_without_effect_are_noted_once() -> None:
    options = feed_options(
        {**HTTP, "dynamic": True, "queue_size": 5, "bad-host": "h", "bad-channel": "c", "bad-dataverse": "v"}
    )
    assert len(options.notes) == 3
    assert options.notes[0].startswith("dynamic has no effect")
    assert options.notes[2].startswith("bad-host, bad-channel, bad-dataverse have no effect")


@pytest.mark.parametrize(("value", "inserts"), [("true", True), (True, True), ("False", False)])
def test_a_feed_inserts_or_upserts(value: Any, inserts: bool) -> None:
    assert feed_options({**HTTP, "insert-feed": value}).inserts is inserts
    assert feed_options(HTTP).inserts is False


def test_an_unknown_option_suggests_the_one_that_was_meant() -> None:
    with pytest.raises(InputError) as raised:
        feed_options({**HTTP, "adresses": "127.0.0.1:1"})
    assert "addresses" in str(raised.value.hint)


def test_interval_is_the_original_word_for_the_period() -> None:
    options = feed_options({**URL, "interval": "90"})
    assert options.polling is not None
    assert options.polling.period_s == 90.0
