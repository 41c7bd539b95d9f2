"""Feeds that cannot land, listen or read their log: statements end in time, and leave the feed as it was."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.sparkless_process import Parts, opened
from tests.support.waiting import WITHIN_S
from tocsin.cluster.catalog.refs import Ref, feed_ref
from tocsin.cluster.feeds.limits import FeedLimits
from tocsin.wire.errors import ConflictError, NotFoundError, StorageFullError, TocsinError, UnavailableError

SETUP = """
CREATE DATAVERSE v; USE v;
CREATE TYPE T AS { id: int };
CREATE DATASET D(T) PRIMARY KEY id; CREATE DATASET E(T) PRIMARY KEY id;
CREATE FEED F WITH {"adapter-name": "http_adapter", "type-name": "T"};
CONNECT FEED F TO DATASET D; START FEED F
"""
F = feed_ref("v", "F")
_HTTP = '{"adapter-name": "http_adapter", "type-name": "T"}'


class FailingLanding:
    """Decides which datasets take nothing, and why."""

    def __init__(self) -> None:
        self._errors: dict[str, Exception] = {}

    def __call__(self, dataset: Ref) -> None:
        if dataset.name in self._errors:
            raise self._errors[dataset.name]

    @contextmanager
    def failing(self, error: Exception, dataset: str = "D") -> Iterator[None]:
        """Nothing lands in the dataset meanwhile."""
        self._errors[dataset] = error
        try:
            yield
        finally:
            del self._errors[dataset]


@pytest.fixture
def landing() -> FailingLanding:
    return FailingLanding()


@pytest.fixture
async def parts(tmp_path: Path, landing: FailingLanding, request: pytest.FixtureRequest) -> AsyncIterator[Parts]:
    limits = FeedLimits(patience_s=0.3, before_landing=landing)
    async with opened(tmp_path / "data", feed_limits=replace(limits, **getattr(request, "param", {}))) as made:
        await made.run(SETUP)
        yield made


patient = pytest.mark.parametrize("parts", [{"patience_s": 600.0}], indirect=True)


async def send(parts: Parts, number: int, *, visible: bool = False) -> None:
    await parts.feeds.accept("v.F", json.dumps({"id": number}).encode(), None, visible=visible)


def held(parts: Parts, dataset: str = "D") -> list[int]:
    return sorted(row["id"] for row in parts.rows(parts.catalog.catalog.dataset("v", dataset)))


FULL = StorageFullError("the disk is full: nothing was changed")


@pytest.mark.parametrize(
    ("statement", "error", "kind"),
    [
        ("STOP FEED v.F", FULL, StorageFullError),
        ("STOP FEED v.F", ValueError("a file is damaged"), UnavailableError),
        ("DROP FEED v.F", FULL, StorageFullError),
        ("CONNECT FEED v.F TO DATASET v.E; DISCONNECT FEED v.F FROM DATASET v.D", FULL, StorageFullError),
    ],
)
async def test_while_landing_fails_a_statement_that_needs_it_is_refused_and_the_feed_goes_on(
    parts: Parts, landing: FailingLanding, statement: str, error: Exception, kind: type[TocsinError]
) -> None:
    with landing.failing(error):
        await send(parts, 1)
        with pytest.raises(kind) as refused:
            await parts.run(statement)
        assert "1 acknowledged records have not landed, because landing in dataset v.D fails since" in str(
            refused.value
        )
        assert str(error) in refused.value.message
        await send(parts, 2)
        (trouble,) = parts.feeds.troubles(F)
        assert (trouble.what, trouble.disk_full) == ("landing in dataset v.D", error is FULL)
    await parts.run("STOP FEED v.F")
    assert held(parts) == [1, 2]
    assert parts.feeds.troubles(F) == []


@patient
async def test_a_statement_that_waits_for_landing_can_be_stopped_and_the_feed_goes_on(
    parts: Parts, landing: FailingLanding
) -> None:
    with landing.failing(FULL):
        await send(parts, 1)
        for statement in ("STOP FEED v.F", "DROP FEED v.F"):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await parts.run(statement)
            await send(parts, 2)
    await send(parts, 3, visible=True)
    assert held(parts) == [1, 2, 3]


@pytest.mark.parametrize("parts", [{"visible_patience_s": 1.0}], indirect=True)
async def test_one_who_waits_until_its_records_are_visible_is_told_that_they_are_kept(
    parts: Parts, landing: FailingLanding
) -> None:
    invisible = "the records are kept, and not visible yet, because landing in"
    with landing.failing(FULL), pytest.raises(UnavailableError, match=invisible):
        await send(parts, 1, visible=True)
    await send(parts, 2, visible=True)
    assert held(parts) == [1, 2]


@patient
async def test_one_feed_that_cannot_land_keeps_no_other_statement_waiting(
    parts: Parts, landing: FailingLanding
) -> None:
    with landing.failing(FULL):
        await send(parts, 1)
        stopping = asyncio.ensure_future(parts.run("STOP FEED v.F"))
        await parts.run(
            'USE v; CREATE FEED G WITH {"adapter-name": "http_adapter", "type-name": "T"};'
            "CONNECT FEED G TO DATASET E; START FEED G; STOP FEED G; DROP FEED G"
        )
        assert not stopping.done()
    await stopping
    assert held(parts) == [1]


async def test_what_cannot_land_can_be_given_up_in_so_many_words(parts: Parts, landing: FailingLanding) -> None:
    with landing.failing(FULL):
        await send(parts, 1)
        await parts.run("CONNECT FEED v.F TO DATASET v.E; DISCONNECT FEED v.F FROM DATASET v.D FORCE")
        await send(parts, 2, visible=True)
    assert (held(parts), held(parts, "E")) == ([], [2])
    with landing.failing(FULL, "E"):
        await send(parts, 3)
        await parts.run("DROP FEED v.F FORCE")
    with pytest.raises(NotFoundError):
        await send(parts, 4)
    assert (held(parts), held(parts, "E")) == ([], [2])
    assert list((parts.settings.data / "intake").iterdir()) == []


async def test_a_started_feed_keeps_a_dataset_to_send_its_records_to(parts: Parts) -> None:
    with pytest.raises(ConflictError, match="is the only dataset that it goes to"):
        await parts.run("DISCONNECT FEED v.F FROM DATASET v.D")
    with pytest.raises(ConflictError, match="keeps what it refused"):
        await parts.run("CONNECT FEED v.F TO DATASET v.FRejected")
    await send(parts, 1, visible=True)
    assert held(parts) == [1]


async def test_connecting_and_disconnecting_disturb_no_publisher(parts: Parts) -> None:
    """Records come all the time: each is taken, and each is in the dataset that stays connected."""

    async def publish() -> None:
        for number in range(100):
            await send(parts, number)

    publishing = asyncio.ensure_future(publish())
    mine: list[int] = []
    while not publishing.done():
        await parts.run("CONNECT FEED v.F TO DATASET v.E")
        mine.append(1_000 + len(mine))
        await send(parts, mine[-1])
        await parts.run("DISCONNECT FEED v.F FROM DATASET v.E")
        assert set(mine) <= set(held(parts, "E"))
    await publishing
    await parts.run("STOP FEED v.F")
    assert held(parts) == [*range(100), *mine]


async def test_a_dataverse_goes_when_what_its_feeds_acknowledged_for_others_is_there(
    parts: Parts, landing: FailingLanding
) -> None:
    await parts.run(
        f"CREATE DATAVERSE w; USE w; CREATE TYPE T AS {{ id: int }}; CREATE FEED G WITH {_HTTP};"
        "CONNECT FEED G TO DATASET v.D; START FEED G"
    )
    with landing.failing(FULL):
        await parts.feeds.accept("w.G", b'{"id": 1}', None, visible=False)
        with pytest.raises(StorageFullError, match="the dataverse w cannot be dropped"):
            await parts.run("DROP DATAVERSE w")
        await parts.feeds.accept("w.G", b'{"id": 2}', None, visible=False)
    await parts.run("DROP DATAVERSE w")
    assert held(parts) == [1, 2]


# ---------------------------------------------------------------- after a restart


async def test_a_port_that_is_taken_after_a_restart_is_told_and_taken_when_it_is_free(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    sockets = f'{{"adapter-name": "socket_adapter", "sockets": "127.0.0.1:{port}", "type-name": "T"}}'
    async with opened(tmp_path / "data") as parts:
        await parts.run(f"{SETUP}; CREATE FEED S WITH {sockets}; CONNECT FEED S TO DATASET D; START FEED S")
        await parts.feeds.accept("v.S", b'{"id": 1}', None, visible=True)
    with socket.create_server(("127.0.0.1", port)) as taken:
        async with opened(tmp_path / "data", feed_limits=FeedLimits(listen_retry_s=0.05)) as parts:
            # The others go on, and so does this one as far as it can.
            await send(parts, 2, visible=True)
            await parts.feeds.accept("v.S", b'{"id": 3}', None, visible=True)
            (trouble,) = parts.feeds.troubles(feed_ref("v", "S"))
            assert (trouble.what, f"cannot listen at 127.0.0.1:{port}" in trouble.reason) == ("listening", True)
            with pytest.raises(ConflictError, match="cannot listen at"):
                await parts.run("START FEED v.S")
            taken.close()
            async with asyncio.timeout(WITHIN_S):
                while parts.feeds.troubles(feed_ref("v", "S")):
                    await asyncio.sleep(0.01)
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b'{"id": 4}')
            writer.close()
            async with asyncio.timeout(WITHIN_S):
                while held(parts) != [1, 2, 3, 4]:
                    await asyncio.sleep(0.01)
            assert (await parts.run("START FEED v.S"))[0].get("already")


async def test_a_feed_whose_log_is_damaged_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with opened(data) as parts:
        await parts.run(f"{SETUP}; CREATE FEED G WITH {_HTTP}; CONNECT FEED G TO DATASET D; START FEED G")
        for number in (1, 2):
            await send(parts, number, visible=True)
        folder = next(feed.folder for feed in parts.catalog.catalog.feeds if feed.name == "F")
    (segment,) = (data / "intake" / folder).iterdir()
    whole = segment.read_bytes()
    segment.write_bytes(whole[:60] + bytes([whole[60] ^ 1]) + whole[61:])
    async with opened(data) as parts:
        await parts.feeds.accept("v.G", b'{"id": 9}', None, visible=True)
        with pytest.raises(UnavailableError, match=r"could not go on: .* is damaged"):
            await send(parts, 3)
        (trouble,) = parts.feeds.troubles(F)
        assert trouble.what == "starting"
        for statement in ("START FEED v.F", "STOP FEED v.F", "DROP FEED v.F"):
            with pytest.raises(TocsinError, match="is damaged"):
                await parts.run(statement)
        segment.write_bytes(whole)
        await parts.run("START FEED v.F")
        await send(parts, 3, visible=True)
        assert held(parts) == [1, 2, 3, 9]
        assert parts.feeds.troubles(F) == []
