"""Feeds over sockets: where records end, what drops a connection, and feeds in the forms of the original."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from tests.support.feeds_in_process import FeedDataverse, connection, free_port, send
from tests.support.in_process_cluster import LocalCluster
from tests.support.waiting import wait_until
from tocsin.wire.errors import ConflictError

SCRIPT = (Path(__file__).parents[3] / "support" / "original_forms.sql").read_text()


def is_dropped(by: socket.socket) -> bool:
    """Waits until the other side ends the connection."""
    try:
        return by.recv(1) == b""
    except ConnectionError:
        return True


@pytest.fixture
def place(cluster: LocalCluster, dataverse: str) -> FeedDataverse:
    made = FeedDataverse(cluster, dataverse)
    made.run("CREATE TYPE T AS { id: int, said: string }; CREATE DATASET D(T) PRIMARY KEY id")
    return made


def listening(place: FeedDataverse, format_: str, **more: str) -> int:
    """A started feed F into D, and its port."""
    port = free_port()
    rest = "".join(f', "{name}": "{value}"' for name, value in more.items())
    place.run(
        f'CREATE FEED F WITH {{"adapter-name": "socket_adapter", "sockets": "127.0.0.1:{port}", "address-type": "IP", '
        f'"type-name": "T", "format": "{format_}"{rest}}}; CONNECT FEED F TO DATASET D; START FEED F'
    )
    return port


def holds(place: FeedDataverse, expected: dict[int, str]) -> None:
    wait_until(lambda: place.held() == expected, f"D holds {expected}")


def test_records_of_adm_end_with_their_last_brace_however_they_are_cut(place: FeedDataverse) -> None:
    port = listening(place, "adm")
    text = b'{"id": 1i64, "said": "}{",\n "zone": circle("1.0,2.0 0.5")}{"id": 2, "said": "b", "size": 1.5f},\n'
    send(port, text[:10], text[10:30], text[30:])
    holds(place, {1: "}{", 2: "b"})
    (row,) = place.rows("SELECT VALUE d.zone FROM D d WHERE d.id = 1")
    assert row == place.rows('SELECT VALUE circle("1.0,2.0 0.5")')[0]


def test_half_a_record_at_the_end_is_none(place: FeedDataverse) -> None:
    port = listening(place, "json")
    send(port, b'{"id": 1, "said": "a"}{"id": 2, "sa')
    send(port, b'{"id": 3, "said": "c"}')
    holds(place, {1: "a", 3: "c"})
    assert place.rejected() == []


def test_the_first_line_of_a_connection_names_the_columns_of_all_that_follow(place: FeedDataverse) -> None:
    port = listening(place, "csv")
    with connection(port) as to:
        to.sendall(b"said,id\na,1\n")
        holds(place, {1: "a"})
        to.sendall(b"b,2\nc,")
        holds(place, {1: "a", 2: "b"})
        to.sendall(b"3")
    holds(place, {1: "a", 2: "b", 3: "c"})


def test_lines_without_a_header_are_the_types_fields_in_their_order(place: FeedDataverse) -> None:
    port = listening(place, "delimited-text", delimiter="|")
    with connection(port) as to:
        to.sendall(b"1|a\n")
        holds(place, {1: "a"})
        to.sendall(b"2|b\n")
        holds(place, {1: "a", 2: "b"})


def test_a_record_that_does_not_fit_is_kept_and_its_neighbours_pass(place: FeedDataverse) -> None:
    port = listening(place, "json")
    send(port, b'{"id": 1, "said": "a"}\n{"id": "x", "said": "b"}\n{"id": 3, "said": "c"}\n')
    holds(place, {1: "a", 3: "c"})
    wait_until(lambda: [rejection["field"] for rejection in place.rejected()] == ["id"], "the refused record is kept")


def test_garbage_drops_the_connection_after_what_came_before_it_and_no_other(place: FeedDataverse) -> None:
    port = listening(place, "json")
    with connection(port) as good, connection(port) as bad:
        bad.sendall(b'{"id": 1, "said": "a"} garbage {"id": 2, "said": "b"}')
        assert is_dropped(bad)
        good.sendall(b'{"id": 3, "said": "c"}')
        holds(place, {1: "a", 3: "c"})


def test_records_in_which_nothing_can_be_read_leave_the_connection_open(place: FeedDataverse) -> None:
    port = listening(place, "json")
    with connection(port) as to:
        to.sendall(b"{broken}")
        to.sendall(b'{"id": 1, "said": "a"}')
        holds(place, {1: "a"})


def test_one_who_connects_and_never_sends_keeps_nobody_waiting(place: FeedDataverse) -> None:
    port = listening(place, "adm")
    with connection(port) as silent, connection(port) as begun:
        begun.sendall(b'{"id": 1,')
        send(port, b'{"id": 2, "said": "b"}')
        holds(place, {2: "b"})
        place.run("STOP FEED F")
        assert is_dropped(silent)
        assert is_dropped(begun)
    with pytest.raises(ConnectionRefusedError), connection(port):
        pass
    place.run("START FEED F")
    send(port, b'{"id": 3, "said": "c"}')
    holds(place, {2: "b", 3: "c"})


def test_of_records_of_one_connection_the_last_with_a_key_wins(place: FeedDataverse) -> None:
    port = listening(place, "json")
    send(port, *(b'{"id": %d, "said": "%d"}\n' % (number % 2, number) for number in range(400)))
    holds(place, {0: "398", 1: "399"})


def test_a_port_that_is_taken_is_told_and_the_feed_stays_stopped(place: FeedDataverse) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        place.run(
            f'CREATE FEED F WITH {{"adapter-name": "socket_adapter", "sockets": "127.0.0.1:{port}", "type-name": "T"}};'
            "CONNECT FEED F TO DATASET D"
        )
        with pytest.raises(ConflictError, match="cannot listen at"):
            place.run("START FEED F")
    place.run("START FEED F")
    send(port, b'{"id": 1, "said": "a"}')
    holds(place, {1: "a"})


# ---------------------------------------------------------------- forms of the original

FEEDS = (Path(__file__).parents[3] / "support" / "original_forms_feeds.sql").read_text()


def test_feeds_in_the_original_forms_are_fed_in_adm_through_their_sockets(
    cluster: LocalCluster, dataverse: str
) -> None:
    """As they stand in the script, but for the host and the ports."""
    place = FeedDataverse(cluster, dataverse)
    ports: dict[str, int] = {}

    def here(found: re.Match[str]) -> str:
        ports[found[1]] = free_port()
        return f"127.0.0.1:{ports[found[1]]}"

    place.run(SCRIPT + re.sub(r"harbour\.example:(\d+)", here, FEEDS))
    report = (
        '{"grade": %d, "waters": circle("846.5,589.4 100.0"), "delay": 1.5f, '
        '"issuedAt": datetime("2026-11-15T08:30:00.250Z"), "hours": 600.0f, "wording": "reef your sails", '
        '"hazard": "squall", "issuer": "pilot 7"}\n'
    )
    send(ports["4101"], *((report % number).encode() for number in range(3)))
    haven = '{"name": "s%d", "mooring": point("846.%d,600.0")}\n'
    send(ports["4102"], *((haven % (number, number)).encode() for number in range(2)))
    location = (
        '{"east": 1.5, "north": 2.5d, "vessel": "u%d", "delay": 0.0f, "seenAt": datetime("2026-11-15T08:30:00")}\n'
    )
    send(ports["4103"], *((location % number).encode() for number in range(2)))
    reports = 'SELECT VALUE r.grade FROM Warnings r WHERE r.hazard = "squall" ORDER BY r.grade'
    wait_until(lambda: place.rows(reports) == [0, 1, 2], "the reports are there")
    havens = "SELECT VALUE s.name FROM Havens s ORDER BY s.name"
    wait_until(lambda: place.rows(havens) == ["s0", "s1"], "the havens are there")
    users = "SELECT VALUE l.vessel FROM Sightings l ORDER BY l.vessel"
    wait_until(lambda: place.rows(users) == ["u0", "u1"], "the locations are there")
    near = "SELECT VALUE r.grade FROM Warnings r, Havens s WHERE "
    near += 'spatial_intersect(r.waters, s.mooring) AND s.name = "s1" ORDER BY r.grade'
    assert place.rows(near) == [0, 1, 2]
    for feed in ("WarningFeed", "HavenFeed", "SightingFeed"):
        assert place.rejected(feed) == []
