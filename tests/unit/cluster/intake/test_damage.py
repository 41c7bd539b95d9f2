"""The log behind a feed after torn writes, damage and full disks: nothing acknowledged is lost or read wrongly."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.support.intake_logs import ALL, all_of, newest, opened
from tocsin.cluster.data_folder.inspection.feeds import inspect_log
from tocsin.cluster.data_folder.lost_folder import LOST
from tocsin.cluster.intake import frames, segments
from tocsin.cluster.intake.log import AppendedRange, IntakeLog
from tocsin.wire.errors import StorageFullError, StoreError

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
    assert set_aside(tmp_path) == [bytes(torn[synced_bytes:])], "nothing tells it from damage"


def set_aside(data: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((data / LOST).glob("*"))]


async def test_a_flipped_bit_in_the_last_frame_is_told_and_its_bytes_are_set_aside(tmp_path: Path) -> None:
    async with opened(tmp_path / "log") as log:
        await log.append(b"kept", 1)
        synced_bytes = log.size_bytes
        await log.append(b"precious", 1)
    path = newest(tmp_path / "log")
    whole = path.read_bytes()
    assert list(inspect_log(tmp_path / "log", "feed v.F", begun=True, landed=0)) == []
    for at in range(synced_bytes, len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 0x40
        path.write_bytes(damaged)
        (found,) = inspect_log(tmp_path / "log", "feed v.F", begun=True, landed=0)
        assert (found.severity, found.path) == ("damaged", tmp_path / "log")
        assert "acknowledged and damaged" in found.problem
        with pytest.raises(StoreError, match=f"is damaged at byte {synced_bytes}"):
            IntakeLog.open(tmp_path / "log")
        assert path.read_bytes() == damaged, "without a lost folder nothing is cut off"
        with capture_logs() as logs:
            async with opened(tmp_path / "log") as log:
                assert all_of(log) == [b"kept"]
        assert [(line["log_level"], line["cut_bytes"]) for line in logs] == [("error", len(whole) - synced_bytes)]
        assert path.read_bytes() == whole[:synced_bytes]
        assert set_aside(tmp_path) == [bytes(damaged[synced_bytes:])]
        assert list(inspect_log(tmp_path / "log", "feed v.F", begun=True, landed=0)) == []
        shutil.rmtree(tmp_path / LOST)


async def test_what_cannot_be_set_aside_is_not_cut_off(tmp_path: Path) -> None:
    whole, _ = await two_groups(tmp_path / "log")
    damaged = whole[:-1] + b"?"
    newest(tmp_path / "log").write_bytes(damaged)
    (tmp_path / LOST).write_bytes(b"no folder")
    with pytest.raises(StoreError, match="cannot be used"):
        async with opened(tmp_path / "log"):
            pass
    assert newest(tmp_path / "log").read_bytes() == damaged


@pytest.mark.parametrize("left", [b"", bytes(200)])
async def test_a_write_that_ends_too_early_is_torn_and_nothing_is_set_aside(tmp_path: Path, left: bytes) -> None:
    whole, synced_bytes = await two_groups(tmp_path / "log")
    newest(tmp_path / "log").write_bytes(whole[:synced_bytes] + (left or whole[synced_bytes:-1]))
    assert list(inspect_log(tmp_path / "log", "feed v.F", begun=True, landed=0)) == []
    async with opened(tmp_path / "log") as log:
        assert all_of(log)[:2] == [b"old0", b"old1"]
    assert set_aside(tmp_path) == []


async def test_damage_in_what_was_synced_is_an_error_and_is_left_alone(tmp_path: Path) -> None:
    whole, synced_bytes = await two_groups(tmp_path / "log")
    path = newest(tmp_path / "log")
    for at in range(synced_bytes):
        damaged = bytearray(whole)
        damaged[at] ^= 0x40
        path.write_bytes(damaged)
        with pytest.raises(StoreError, match="is damaged at byte"):
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
        log.record_landed(105)
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


async def test_a_segment_of_a_newer_program_is_left_alone(tmp_path: Path) -> None:
    async with opened(tmp_path / "log") as log:
        await log.append(b"x", 1)
    path = newest(tmp_path / "log")
    whole = path.read_bytes()
    _, salt, first = frames.read_segment_head(whole[: frames.SEGMENT_HEAD_BYTES])
    newer = frames.segment_head(first, salt, version=frames.VERSION + 1)
    path.write_bytes(newer + whole[frames.SEGMENT_HEAD_BYTES :])
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


class FailingSync:
    """A sync that fails with the error numbers in `left`, one after the other, and works then."""

    def __init__(self) -> None:
        self.left: list[int] = []

    def __call__(self, handle: int) -> None:
        if self.left:
            raise OSError(number := self.left.pop(0), os.strerror(number))
        os.fsync(handle)


async def test_a_disk_that_is_full_only_at_the_sync_loses_nothing_either(tmp_path: Path) -> None:
    async with opened(tmp_path / "log", sync=(sync := FailingSync())) as log:
        await log.append(b"before", 1)
        # The write's own sync, the one after the cut, and the cut tried again by the next append.
        sync.left = [errno.ENOSPC, errno.ENOSPC, errno.ENOSPC]
        for _ in range(2):
            with pytest.raises(StorageFullError):
                await log.append(b"refused", 1)
        assert (await log.append(b"after", 1)).position == 2
        assert all_of(log) == [b"before", b"after"]
    async with opened(tmp_path / "log") as log:
        assert all_of(log) == [b"before", b"after"]


async def test_a_sync_that_failed_is_not_trusted_when_it_succeeds_the_second_time(tmp_path: Path) -> None:
    async with opened(tmp_path / "log", sync=(sync := FailingSync())) as log:
        await log.append(b"before", 1)
        sync.left = [errno.EIO]
        for _ in range(2):
            with pytest.raises(StoreError, match="Input/output error"):
                await log.append(b"refused", 1)
        assert all_of(log) == [b"before"]
    # Nor does a restarted process believe what the system still has in memory of it.
    async with opened(tmp_path / "log") as log:
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
        assert await log.append(b"b", 1, key="k") == AppendedRange(1, b"", repeated=False)
