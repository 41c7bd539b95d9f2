"""The log behind a feed: kept when told, read in order, once per key, and bounded."""

from __future__ import annotations

import asyncio
import gc
import shutil
import threading
from pathlib import Path

import pytest

from tests.support.intake_logs import ALL, FakeLogClock, all_of, opened
from tocsin.cluster.intake.append_queue import ReadWaiter
from tocsin.cluster.intake.idempotency_keys import RememberedAnswer, RememberedKeys
from tocsin.cluster.intake.log import AppendedRange, IntakeLog, LogEntry
from tocsin.wire.errors import LimitError, StoreError, UnavailableError

# ---------------------------------------------------------------- in and out


async def test_an_append_says_the_position_after_it(tmp_path: Path) -> None:
    async with opened(tmp_path / "log") as log:
        assert await log.append(b"a", 3) == AppendedRange(3, b"", repeated=False)
        assert await log.append(b"b", 2, answer=b"two") == AppendedRange(5, b"two", repeated=False)
        assert (log.first, log.end) == (0, 5)


async def test_what_was_appended_is_read_in_order_before_and_after_a_restart(tmp_path: Path) -> None:
    clock = FakeLogClock()
    kept = [LogEntry(0, 2, b"a", "k", b"yes", 1_000.0), LogEntry(2, 1, b"", None, b"", 1_000.0)]
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


async def test_appends_of_one_turn_of_the_loop_share_one_sync(tmp_path: Path) -> None:
    syncs: list[int] = []
    async with opened(tmp_path / "log", sync=syncs.append) as log:
        syncs.clear()
        await asyncio.gather(*(log.append(b"x", 1) for _ in range(100)))
    assert len(syncs) == 1


async def test_nothing_can_be_read_before_it_is_synced(tmp_path: Path) -> None:
    go, at_the_sync = threading.Event(), threading.Event()

    def slow(_: int) -> None:
        at_the_sync.set()
        assert go.wait(30)

    go.set()  # opening syncs, too
    async with opened(tmp_path / "log", sync=slow) as log:
        go.clear()
        at_the_sync.clear()
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
            log.record_landed(16)


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
    def read_waiters() -> list[ReadWaiter]:
        gc.collect()
        return [thing for thing in gc.get_objects() if isinstance(thing, ReadWaiter)]

    # Logs of other tests may be open in this process.
    others = read_waiters()
    async with opened(tmp_path / "log") as log:
        for _ in range(3):
            waiting = asyncio.ensure_future(log.wait(0))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
        del waiting  # its exception holds the frames of the wait
        assert not {id(waiter) for waiter in read_waiters()} - {id(waiter) for waiter in others}


async def test_an_append_that_is_given_up_harms_nobody(tmp_path: Path) -> None:
    async with opened(tmp_path / "log") as log:
        first = asyncio.ensure_future(log.append(b"a", 1, key="k", answer=b"A"))
        second = asyncio.ensure_future(log.append(b"b", 1, key="k", answer=b"B"))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == AppendedRange(1, b"A", repeated=True)
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
    clock = FakeLogClock()
    async with opened(tmp_path / "log", clock=clock) as log:
        await log.append(b"a", 3, key="k", answer=b"first")
        assert await log.append(b"b", 5, key="k", answer=b"second") == AppendedRange(3, b"first", repeated=True)
    async with opened(tmp_path / "log", clock=clock) as log:
        clock.now_s += 600
        assert await log.append(b"b", 5, key="k", answer=b"second") == AppendedRange(3, b"first", repeated=True)
        clock.now_s += 1
        assert await log.append(b"c", 1, key="k", answer=b"third") == AppendedRange(4, b"third", repeated=False)
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
        keys.add(f"k{each}", RememberedAnswer(each, each + 1, bytes(100), 0.0))
    assert 150 < len(keys) < 250
    assert keys.find("k999", 0.0) is not None
    assert keys.find("k0", 0.0) is None
    assert keys.oldest == 1_000 - len(keys)


def test_a_key_that_is_used_again_counts_from_then_on() -> None:
    keys = RememberedKeys(600.0, 100_000)
    for first, key, at_s in ((0, "a", 0.0), (1, "b", 10.0), (2, "a", 700.0)):
        keys.add(key, RememberedAnswer(first, first + 1, b"", at_s))
    keys.forget(700.0, 700.0)
    assert (keys.oldest, len(keys)) == (2, 1)
    assert keys.find("a", 1_300.0) is not None


def test_keys_do_not_grow_old_while_the_time_that_tells_ages_stands_still() -> None:
    keys = RememberedKeys(600.0, 100_000)
    keys.add("before", RememberedAnswer(0, 1, b"", 1_000.0))
    for now_s in (1_300.0, 5_000.0):
        keys.add(f"at {now_s}", RememberedAnswer(1, 2, b"", now_s))
        keys.forget(now_s, 1_100.0)
    assert keys.find("before", 1_100.0) is not None
    # It goes on: each key is as old as it is, whenever it came.
    keys.forget(5_500.0, 5_500.0)
    assert [key for key in ("before", "at 1300.0", "at 5000.0") if keys.find(key, 5_500.0)] == ["at 5000.0"]


def test_a_clock_that_is_set_back_neither_forgets_keys_nor_keeps_them_for_ever() -> None:
    keys = RememberedKeys(600.0, 100_000)
    keys.add("k", RememberedAnswer(0, 1, b"", 1_000_000.0))
    keys.forget(5_000.0, 5_000.0)
    assert keys.find("k", 5_000.0) is not None
    keys.forget(5_601.0, 5_601.0)
    assert keys.oldest is None


# ---------------------------------------------------------------- segments and landing


async def test_landed_segments_go_when_their_keys_are_forgotten(tmp_path: Path) -> None:
    clock = FakeLogClock()
    async with opened(tmp_path / "log", clock=clock, segment_bytes=1) as log:
        for each in range(4):
            await log.append(b"x", 1, key="k" if each == 1 else None)
        log.record_landed(3)
        assert log.first == 1
        clock.now_s += 601
        log.record_landed(3)
        assert log.first == 3
        log.record_landed(2)
        assert (log.first, log.end) == (3, 4)


async def test_positions_go_on_after_everything_was_trimmed(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    async with opened(folder, segment_bytes=1) as log:
        await log.append(b"x", 7)
    async with opened(folder, segment_bytes=1) as log:
        log.record_landed(7)
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
            log.record_landed(position)
            assert log.unlanded_bytes == entries * each_bytes


async def test_a_log_that_is_behind_refuses_until_something_lands(tmp_path: Path) -> None:
    async with opened(tmp_path / "log", limit_bytes=1_000) as log:
        await log.append(bytes(600), 1, key="k")
        with pytest.raises(LimitError, match="1000 bytes") as refused:
            await log.append(bytes(600), 1)
        assert refused.value.status == 429
        assert refused.value.details == {"retry": True, "retry_after_s": 1}
        assert (await log.append(bytes(600), 1, key="k")).repeated
        log.record_landed(1)
        assert (await log.append(bytes(600), 1)).position == 2
        with pytest.raises(LimitError, match="at once") as refused:
            await log.append(bytes(1_001), 1)
        assert refused.value.status == 413


async def test_what_waits_for_the_disk_counts_too(tmp_path: Path) -> None:
    async with opened(tmp_path / "log", limit_bytes=1_000) as log:
        outcomes = await asyncio.gather(*(log.append(bytes(200), 1) for _ in range(10)), return_exceptions=True)
        assert sum(isinstance(outcome, AppendedRange) for outcome in outcomes) == log.end == 4
