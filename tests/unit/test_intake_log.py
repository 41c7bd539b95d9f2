"""The log behind a feed: kept when told, read in order, once per key, bounded, and whole again after a torn write."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tocsin.cluster.intake import frames, segments
from tocsin.cluster.intake.keys import Remembered, RememberedKeys
from tocsin.cluster.intake.log import Appended, Entry, IntakeLog
from tocsin.wire.errors import LimitError, StorageFullError, StoreError, UnavailableError

ALL = {"max_rows": 1 << 40, "max_bytes": 1 << 40}


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@asynccontextmanager
async def opened(folder: Path, **options: Any) -> AsyncIterator[IntakeLog]:
    log = IntakeLog.open(folder, **options)
    try:
        yield log
    finally:
        await log.close()


def payloads(entries: list[Entry]) -> list[bytes]:
    return [entry.payload for entry in entries]


def newest(folder: Path) -> Path:
    return max(folder.glob("*.log"))


def all_of(log: IntakeLog) -> list[bytes]:
    return payloads(log.read(log.first, **ALL))


# ---------------------------------------------------------------- in and out


async def test_an_append_says_the_position_after_it(tmp_path: Path) -> None:
    async with opened(tmp_path / "log") as log:
        assert await log.append(b"a", 3) == Appended(3, b"", repeated=False)
        assert await log.append(b"b", 2, answer=b"two") == Appended(5, b"two", repeated=False)
        assert (log.first, log.end) == (0, 5)


async def test_what_was_appended_is_read_in_order_before_and_after_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    kept = [Entry(0, 2, b"a", "k", b"yes", 1_000.0), Entry(2, 1, b"", None, b"", 1_000.0)]
    async with opened(tmp_path / "log", clock=clock) as log:
        await log.append(b"a", 2, key="k", answer=b"yes")
        await log.append(b"", 1)
        assert log.read(0, **ALL) == kept
    async with opened(tmp_path / "log", clock=clock) as log:
        assert log.read(0, **ALL) == kept
        assert log.read(2, **ALL) == kept[1:]
        assert log.read(1, **ALL) == kept
        assert log.read(3, **ALL) == []


async def test_concurrent_appends_are_in_the_order_of_the_calls(tmp_path: Path) -> None:
    async with opened(tmp_path / "log") as log:
        answers = await asyncio.gather(*(log.append(b"%d" % each, 1) for each in range(500)))
        assert [answer.position for answer in answers] == list(range(1, 501))
        assert all_of(log) == [b"%d" % each for each in range(500)]


async def test_appends_of_one_turn_of_the_loop_share_one_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = []
    async with opened(tmp_path / "log") as log:
        monkeypatch.setattr(segments, "_sync", lambda handle: syncs.append(handle))
        await asyncio.gather(*(log.append(b"x", 1) for _ in range(100)))
    assert len(syncs) == 1


async def test_nothing_can_be_read_before_it_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go, at_the_sync = threading.Event(), threading.Event()

    def slow(_: int) -> None:
        at_the_sync.set()
        assert go.wait(30)

    async with opened(tmp_path / "log") as log:
        monkeypatch.setattr(segments, "_sync", slow)
        appending = asyncio.ensure_future(log.append(b"x", 1))
        assert await asyncio.to_thread(at_the_sync.wait, 30)
        assert (log.end, log.read(0, **ALL), appending.done()) == (0, [], False)
        go.set()
        assert (await appending).position == 1
        assert all_of(log) == [b"x"]


@pytest.mark.parametrize("recent_bytes", [0, 1_000, 1 << 20])
async def test_a_read_gives_whole_entries_within_the_limits_and_at_least_one(tmp_path: Path, recent_bytes: int) -> None:
    async with opened(tmp_path / "log", recent_bytes=recent_bytes, segment_bytes=400) as log:
        for each in range(10):
            await log.append(b"%d" % each * 100, 10)
        assert len(log.read(0, max_rows=1, max_bytes=1)) == 1
        assert [entry.first for entry in log.read(0, max_rows=35, max_bytes=1 << 20)] == [0, 10, 20]
        assert [entry.first for entry in log.read(45, max_rows=1_000, max_bytes=250)] == [40, 50]
        assert [entry.first for entry in log.read(79, **ALL)] == [70, 80, 90]
        assert log.read(100, **ALL) == []


async def test_recent_entries_are_read_without_the_disk_and_memory_stays_bounded(tmp_path: Path) -> None:
    async with opened(tmp_path / "log", recent_bytes=100_000) as log:
        for each in range(100):
            await log.append(bytes(10_000), 1, answer=b"%d" % each)
        shutil.rmtree(tmp_path / "log")
        assert [entry.first for entry in log.read(97, **ALL)] == [97, 98, 99]
        with pytest.raises(StoreError):
            log.read(0, **ALL)


async def test_a_position_that_the_log_does_not_hold_is_an_error(tmp_path: Path) -> None:
    async with opened(tmp_path / "log", landed=10) as log:
        await log.append(b"x", 5)
        for position in (9, 16):
            with pytest.raises(StoreError, match=f"holds the positions 10 to 15, not {position}"):
                log.read(position, **ALL)
        with pytest.raises(StoreError, match="not 16"):
            log.landed(16)


async def test_an_entry_without_records_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path / "log") as log:
        with pytest.raises(ValueError, match="at least one record"):
            await log.append(b"x", 0)


async def test_wait_returns_when_there_is_something_to_read(tmp_path: Path) -> None:
    async with opened(tmp_path / "log") as log:
        near, far = asyncio.ensure_future(log.wait(0)), asyncio.ensure_future(log.wait(1))
        await asyncio.sleep(0)
        await log.append(b"x", 1)
        await near
        assert not far.done()
        await log.wait(0)
        await log.append(b"y", 1)
        await far


async def test_a_wait_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path / "log") as log:
        for _ in range(3):
            waiting = asyncio.ensure_future(log.wait(0))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
        assert not log._sleepers


async def test_an_append_that_is_given_up_harms_nobody(tmp_path: Path) -> None:
    async with opened(tmp_path / "log") as log:
        first = asyncio.ensure_future(log.append(b"a", 1, key="k", answer=b"A"))
        second = asyncio.ensure_future(log.append(b"b", 1, key="k", answer=b"B"))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == Appended(1, b"A", repeated=True)
        assert (await log.append(b"c", 1)).position == 2


async def test_close_finishes_what_was_asked_for_and_refuses_the_rest(tmp_path: Path) -> None:
    log = IntakeLog.open(tmp_path / "log")
    sleeping = asyncio.ensure_future(log.wait(10))
    asked = [asyncio.ensure_future(log.append(b"x", 1)) for _ in range(3)]
    await asyncio.sleep(0)
    await log.close()
    assert [(await each).position for each in asked] == [1, 2, 3]
    with pytest.raises(UnavailableError, match="closed"):
        await sleeping
    with pytest.raises(UnavailableError, match="closed"):
        await log.append(b"x", 1)
    await log.close()
    async with opened(tmp_path / "log") as log:
        assert log.end == 3


# ---------------------------------------------------------------- keys


async def test_a_key_is_appended_once_also_after_a_restart_and_the_first_answer_counts(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path / "log", clock=clock) as log:
        await log.append(b"a", 3, key="k", answer=b"first")
        assert await log.append(b"b", 5, key="k", answer=b"second") == Appended(3, b"first", repeated=True)
    async with opened(tmp_path / "log", clock=clock) as log:
        clock.now_s += 600
        assert await log.append(b"b", 5, key="k", answer=b"second") == Appended(3, b"first", repeated=True)
        clock.now_s += 1
        assert await log.append(b"c", 1, key="k", answer=b"third") == Appended(4, b"third", repeated=False)
        assert all_of(log) == [b"a", b"c"]


async def test_two_requests_with_one_key_at_the_same_time_are_one_append(tmp_path: Path) -> None:
    async with opened(tmp_path / "log") as log:
        answers = await asyncio.gather(*(log.append(b"%d" % each, 1, key="k") for each in range(5)))
        assert [answer.repeated for answer in answers] == [False, True, True, True, True]
        assert {answer.position for answer in answers} == {1}
        assert all_of(log) == [b"0"]


@pytest.mark.parametrize("key", ["", "ключ", "\udcff", "k" * 1024])
async def test_any_key_comes_back_as_it_was(tmp_path: Path, key: str) -> None:
    for repeated in (False, True):
        async with opened(tmp_path / "log") as log:
            assert (await log.append(b"x", 1, key=key)).repeated is repeated
            assert log.read(0, **ALL)[0].key == key


async def test_a_key_that_is_too_long_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path / "log") as log:
        with pytest.raises(LimitError, match="at most 1024 bytes"):
            await log.append(b"x", 1, key="k" * 1025)


def test_the_memory_for_keys_is_bounded_and_the_oldest_go_first() -> None:
    keys = RememberedKeys(600.0, 100_000)
    for each in range(1_000):
        keys.add(f"k{each}", Remembered(each, each + 1, bytes(100), 0.0))
    assert 150 < len(keys) < 250
    assert keys.find("k999", 0.0) is not None
    assert keys.find("k0", 0.0) is None
    assert keys.oldest == 1_000 - len(keys)


def test_a_clock_that_is_set_back_neither_forgets_keys_nor_keeps_them_for_ever() -> None:
    keys = RememberedKeys(600.0, 100_000)
    keys.add("k", Remembered(0, 1, b"", 1_000_000.0))
    keys.forget(5_000.0)
    assert keys.find("k", 5_000.0) is not None
    keys.forget(5_601.0)
    assert keys.oldest is None


# ---------------------------------------------------------------- segments and landing


async def test_landed_segments_go_when_their_keys_are_forgotten(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path / "log", clock=clock, segment_bytes=1) as log:
        for each in range(4):
            await log.append(b"x", 1, key="k" if each == 1 else None)
        log.landed(3)
        assert log.first == 1
        clock.now_s += 601
        log.landed(3)
        assert log.first == 3
        log.landed(2)
        assert (log.first, log.end) == (3, 4)


async def test_positions_go_on_after_everything_was_trimmed(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    async with opened(folder, segment_bytes=1) as log:
        await log.append(b"x", 7)
    async with opened(folder, segment_bytes=1) as log:
        log.landed(7)
        assert (log.first, log.end, log.unlanded_bytes) == (7, 7, 0)
        assert [path.name for path in folder.iterdir()] == [f"{7:020d}.log"]
    for _ in range(2):
        async with opened(folder, segment_bytes=1, landed=7) as log:
            assert (log.first, log.end) == (7, 7)
    async with opened(folder) as log:
        assert (await log.append(b"y", 1)).position == 8


@pytest.mark.parametrize("recent_bytes", [0, 5_000, 1 << 20])
async def test_what_has_not_landed_is_counted_to_the_byte(tmp_path: Path, recent_bytes: int) -> None:
    folder, marks = tmp_path / "log", ((0, 50), (10, 49), (255, 25), (490, 1), (500, 0))
    async with opened(folder, segment_bytes=2_000) as log:
        assert log.unlanded_bytes == 0
        await asyncio.gather(*(log.append(bytes(150), 10) for _ in range(20)))
        for _ in range(30):
            await log.append(bytes(150), 10)
        each_bytes = log.unlanded_bytes // 50
    for position, entries in marks:
        async with opened(folder, landed=position) as log:
            assert log.unlanded_bytes == entries * each_bytes
            assert log.size_bytes == sum(path.stat().st_size for path in folder.iterdir())
    async with opened(folder, recent_bytes=recent_bytes) as log:
        for position, entries in marks:
            log.landed(position)
            assert log.unlanded_bytes == entries * each_bytes


async def test_a_log_that_is_behind_refuses_until_something_lands(tmp_path: Path) -> None:
    async with opened(tmp_path / "log", limit_bytes=1_000) as log:
        await log.append(bytes(600), 1, key="k")
        with pytest.raises(LimitError, match="1000 bytes") as refused:
            await log.append(bytes(600), 1)
        assert refused.value.status == 429
        assert refused.value.details == {"retry": True, "retry_after_s": 1}
        assert (await log.append(bytes(600), 1, key="k")).repeated
        log.landed(1)
        assert (await log.append(bytes(600), 1)).position == 2
        with pytest.raises(LimitError, match="at once") as refused:
            await log.append(bytes(1_001), 1)
        assert refused.value.status == 413


async def test_what_waits_for_the_disk_counts_too(tmp_path: Path) -> None:
    async with opened(tmp_path / "log", limit_bytes=1_000) as log:
        outcomes = await asyncio.gather(*(log.append(bytes(200), 1) for _ in range(10)), return_exceptions=True)
        assert sum(isinstance(outcome, Appended) for outcome in outcomes) == log.end == 4


# ---------------------------------------------------------------- crashes and damage


async def two_groups(folder: Path) -> tuple[bytes, int]:
    """A segment whose second write had three entries: its bytes, and how many of them the first write had synced."""
    async with opened(folder) as log:
        await asyncio.gather(*(log.append(b"old%d" % each, 1) for each in range(2)))
        synced_bytes = log.size_bytes
        await asyncio.gather(*(log.append(b"new%d" % each, 1) for each in range(3)))
    return newest(folder).read_bytes(), synced_bytes


async def test_a_write_torn_anywhere_is_cut_off_and_nothing_synced_is_lost(tmp_path: Path) -> None:
    whole, synced_bytes = await two_groups(tmp_path / "log")
    path = newest(tmp_path / "log")
    expected = [b"old0", b"old1", b"new0", b"new1", b"new2"]
    for length in range(synced_bytes, len(whole)):
        for filling in (b"", bytes(len(whole) - length)) if length % 7 == 0 else (b"",):
            path.write_bytes(whole[:length] + filling)
            async with opened(tmp_path / "log") as log:
                kept = all_of(log)
                assert expected[: len(kept)] == kept
                assert len(kept) >= 2
                assert path.stat().st_size == log.size_bytes
                await log.append(b"next", 1)
            async with opened(tmp_path / "log") as log:
                assert all_of(log) == [*kept, b"next"]


async def test_a_hole_in_a_torn_write_does_not_pass_for_damage(tmp_path: Path) -> None:
    """A power cut may keep the end of a write and lose its beginning."""
    whole, synced_bytes = await two_groups(tmp_path / "log")
    torn = bytearray(whole)
    torn[synced_bytes : synced_bytes + 10] = bytes(10)
    newest(tmp_path / "log").write_bytes(torn)
    async with opened(tmp_path / "log") as log:
        assert all_of(log) == [b"old0", b"old1"]


async def test_damage_in_what_was_synced_is_an_error_and_is_left_alone(tmp_path: Path) -> None:
    whole, synced_bytes = await two_groups(tmp_path / "log")
    path = newest(tmp_path / "log")
    for at in range(synced_bytes):
        damaged = bytearray(whole)
        damaged[at] ^= 0x40
        path.write_bytes(damaged)
        with pytest.raises(StoreError, match="is damaged at byte|newer Tocsin"):
            IntakeLog.open(tmp_path / "log")
        assert path.read_bytes() == damaged


async def test_an_older_segment_must_be_whole(tmp_path: Path) -> None:
    async with opened(tmp_path / "log", segment_bytes=1) as log:
        await log.append(b"first", 1)
        await log.append(b"second", 1)
    path = min((tmp_path / "log").glob("*.log"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreError, match="is damaged at byte"):
        IntakeLog.open(tmp_path / "log")


async def test_a_missing_segment_is_an_error(tmp_path: Path) -> None:
    async with opened(tmp_path / "log", segment_bytes=1) as log:
        for _ in range(3):
            await log.append(b"x", 5)
    segments.path_of(tmp_path / "log", 5).unlink()
    with pytest.raises(StoreError, match="the positions from 5 to 10 are missing"):
        IntakeLog.open(tmp_path / "log")


async def test_a_log_that_is_not_where_the_datasets_are_is_an_error(tmp_path: Path) -> None:
    async with opened(tmp_path / "log", segment_bytes=1, landed=100) as log:
        assert (await log.append(b"x", 5)).position == 105
        log.landed(105)
    for landed in (99, 106):
        with pytest.raises(StoreError, match=f"to 105, not {landed}"):
            IntakeLog.open(tmp_path / "log", landed=landed)


async def test_damage_that_comes_later_is_found_by_the_reader(tmp_path: Path) -> None:
    async with opened(tmp_path / "log", recent_bytes=0) as log:
        await log.append(b"precious", 1)
        path = newest(tmp_path / "log")
        path.write_bytes(path.read_bytes().replace(b"precious", b"specious"))
        with pytest.raises(StoreError, match="is damaged at byte"):
            log.read(0, **ALL)


async def test_a_segment_of_a_newer_program_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(frames, "VERSION", 2)
        async with opened(tmp_path / "log") as log:
            await log.append(b"x", 1)
    with pytest.raises(StoreError, match="newer Tocsin"):
        IntakeLog.open(tmp_path / "log")


async def test_a_payload_that_holds_a_log_is_a_payload(tmp_path: Path) -> None:
    """Also where its write is torn: what it holds must not be taken for frames of this log."""
    other, _ = await two_groups(tmp_path / "other")
    async with opened(tmp_path / "log") as log:
        await log.append(b"kept", 1)
        await log.append(other + other, 1)
    path = newest(tmp_path / "log")
    path.write_bytes(path.read_bytes()[:-1])
    async with opened(tmp_path / "log") as log:
        assert all_of(log) == [b"kept"]


async def test_an_unfinished_segment_goes_and_a_strange_file_stays(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    (folder / f"{9:020d}.new").write_bytes(b"")
    (folder / "notes.txt").write_bytes(b"mine")
    async with opened(folder):
        assert sorted(path.name for path in folder.iterdir()) == [f"{0:020d}.log", "notes.txt"]


# ---------------------------------------------------------------- a disk that refuses


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    """The system refuses to let a file grow beyond this, after writing what fits: a full disk for one file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_full_disk_refuses_keeps_what_was_acknowledged_and_works_again_with_room(tmp_path: Path) -> None:
    async with opened(tmp_path / "log") as log:
        await log.append(b"before", 1)
        size_bytes = log.size_bytes
        with files_of_at_most(size_bytes + 60_000):
            for _ in range(3):
                with pytest.raises(StorageFullError, match="no room left"):
                    await log.append(bytes(100_000), 1, key="k")
            assert newest(tmp_path / "log").stat().st_size == log.size_bytes == size_bytes
            assert (await log.append(b"small", 1)).position == 2
        assert not (await log.append(b"after", 1, key="k")).repeated
        assert all_of(log) == [b"before", b"small", b"after"]
    async with opened(tmp_path / "log") as log:
        assert all_of(log) == [b"before", b"small", b"after"]


async def test_a_group_on_a_full_disk_is_refused_as_a_whole(tmp_path: Path) -> None:
    async with opened(tmp_path / "log") as log:
        with files_of_at_most(60_000):
            outcomes = await asyncio.gather(*(log.append(bytes(10_000), 1) for _ in range(10)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StorageFullError] * 10
        assert len(set(map(id, outcomes))) == 10
        assert (log.end, log.unlanded_bytes) == (0, 0)
        assert (await log.append(b"x", 1)).position == 1


def failing(*numbers: int) -> Callable[[int], None]:
    """A sync that fails in these ways, one after the other, and works then."""
    left = list(numbers)

    def sync(handle: int) -> None:
        if left:
            raise OSError(number := left.pop(0), os.strerror(number))
        os.fsync(handle)

    return sync


async def test_a_disk_that_is_full_only_at_the_sync_loses_nothing_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path / "log") as log:
        await log.append(b"before", 1)
        # The write's own sync, the one after the cut, and the cut tried again by the next append.
        monkeypatch.setattr(segments, "_sync", failing(errno.ENOSPC, errno.ENOSPC, errno.ENOSPC))
        for _ in range(2):
            with pytest.raises(StorageFullError):
                await log.append(b"refused", 1)
        assert (await log.append(b"after", 1)).position == 2
        assert all_of(log) == [b"before", b"after"]
    async with opened(tmp_path / "log") as log:
        assert all_of(log) == [b"before", b"after"]


async def test_a_sync_that_failed_is_not_trusted_when_it_succeeds_the_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path / "log") as log:
        await log.append(b"before", 1)
        monkeypatch.setattr(segments, "_sync", failing(errno.EIO))
        for _ in range(2):
            with pytest.raises(StoreError, match="Input/output error"):
                await log.append(b"refused", 1)
        assert all_of(log) == [b"before"]


async def test_a_segment_that_cannot_be_made_refuses_and_is_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with opened(tmp_path / "log", segment_bytes=1) as log:
        with monkeypatch.context() as patch:
            patch.setattr(segments, "create", refuse)
            assert (await log.append(b"a", 1)).position == 1
            with pytest.raises(StorageFullError):
                await log.append(b"b", 1)
        assert (await log.append(b"c", 1)).position == 2
        assert all_of(log) == [b"a", b"c"]


async def test_a_bug_in_the_writer_is_told_to_those_who_wait_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path / "log") as log:
        with monkeypatch.context() as patch:
            patch.setattr("tocsin.cluster.intake.log.frame_parts", lambda *_: 1 / 0)
            with pytest.raises(StoreError, match="ZeroDivisionError"):
                await log.append(b"a", 1, key="k")
        assert await log.append(b"b", 1, key="k") == Appended(1, b"", repeated=False)
