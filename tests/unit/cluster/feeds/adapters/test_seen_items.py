"""What a polled feed remembers of its items: with the log, beside it, and for how long."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from tocsin import durable_files
from tocsin.cluster.feeds.adapters import seen_items as seen_module
from tocsin.cluster.feeds.adapters.seen_items import KEEP_EVERY, NAME, SeenItems, mark
from tocsin.cluster.feeds.batches import pack_batch, read_marks, read_refused, rows_in
from tocsin.cluster.intake.log import IntakeLog
from tocsin.pipeline.sources.decoder import DecodedRecord
from tocsin.rules.model.types import BIGINT, Field, ObjectType
from tocsin.wire.errors import StoreError

KIND = ObjectType((Field("id", BIGINT),))
SMALL = {"segment_bytes": 400, "recent_bytes": 100}


def marks(*numbers: int) -> list[bytes]:
    return [mark(f"id {number}") for number in numbers]


def payload(*numbers: int) -> bytes:
    return pack_batch(
        [DecodedRecord(place, {"id": number}) for place, number in enumerate(numbers)], KIND, marks(*numbers)
    )


def opened(folder: Path, limit: int = 1_000, keep_every: int = KEEP_EVERY) -> tuple[SeenItems, IntakeLog]:
    seen = SeenItems.open(folder, limit=limit, keep_every=keep_every)
    return seen, IntakeLog.open(folder, observer=seen, **SMALL)


def new(seen: SeenItems, *numbers: int) -> list[int]:
    return [numbers[place] for place in seen.unseen(marks(*numbers))]


def test_the_marks_of_a_poll_are_packed_with_its_records_and_its_refusals() -> None:
    decoded = [DecodedRecord(0, {"id": 1}), DecodedRecord(1, None, "id", "why", b"text")]
    made = pack_batch(decoded, KIND, marks(1, 2))
    assert read_marks(made) == marks(1, 2)
    assert rows_in([made], KIND)[1] == [1]
    assert [refusal["reason"] for refusal in read_refused(made)] == ["why"]
    assert read_marks(pack_batch(decoded, KIND)) == read_marks(pack_batch(decoded[:1], KIND)) == []


def test_of_equal_items_in_one_answer_the_first_is_new() -> None:
    assert SeenItems(Path(), 10).unseen(marks(1, 2, 1, 3, 2)) == [0, 1, 3]


async def test_what_is_in_the_log_is_remembered_when_it_is_opened_again(tmp_path: Path) -> None:
    seen, log = opened(tmp_path / "log")
    await log.append(payload(1, 2), 2)
    assert new(seen, 1, 2, 3) == [3]
    await log.close()
    seen, log = opened(tmp_path / "log")
    assert new(seen, 1, 2, 3) == [3]
    await log.close()


async def test_what_a_segment_held_is_on_the_disk_before_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "log"
    _, log = opened(folder)
    for number in range(20):
        await log.append(payload(number), 1)
    # Opened again, nothing is written any more behind our back: a segment may begin just after it was answered.
    await log.close()
    _, log = opened(folder)
    whole = sorted(folder.glob("*.log"))
    held: list[bool] = []

    def watch(point: str) -> None:
        if point == "polling.seen.renamed":
            held.append(sorted(folder.glob("*.log")) == whole)

    monkeypatch.setattr("tocsin.faults.reach", watch)
    log.record_landed(20)
    await log.close()
    assert held == [True]
    assert len(list(folder.glob("*.log"))) < len(whole)
    seen, log = opened(folder)
    assert new(seen, *range(21)) == [20]
    await log.close()


async def test_no_segment_goes_while_there_is_no_room_to_remember_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "log"
    _, log = opened(folder)
    for number in range(20):
        await log.append(payload(number), 1)
    # Opened again, nothing is written any more behind our back: a segment may begin just after it was answered.
    await log.close()
    _, log = opened(folder)
    whole = sorted(folder.glob("*.log"))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(durable_files.os, "fsync", full)
        log.record_landed(20)
    assert sorted(folder.glob("*.log")) == whole
    assert not list(folder.glob("seen*"))
    log.record_landed(20)
    assert len(list(folder.glob("*.log"))) < len(whole)
    await log.close()


async def test_of_too_many_those_go_first_that_were_longest_in_no_answer(tmp_path: Path) -> None:
    seen, log = opened(tmp_path / "log", limit=4)
    await log.append(payload(1, 2, 3), 3)
    seen.note_answer(marks(1, 2, 3))
    await log.append(payload(4, 5), 2)
    seen.note_answer(marks(1, 4, 5))
    assert new(seen, 1, 2, 3, 4, 5) == [2]
    await log.close()


async def test_what_is_still_in_the_answer_is_not_forgotten_by_reading_the_log_again(tmp_path: Path) -> None:
    """The first item stays in the answer while more others pass than are remembered."""
    folder = tmp_path / "log"
    for number in range(1, 30):
        seen, log = opened(folder, limit=4)
        assert new(seen, 0, number) == ([0, 1] if number == 1 else [number])
        await log.append(payload(*new(seen, 0, number)), len(new(seen, 0, number)))
        seen.note_answer(marks(0, number))
        assert len(seen) <= 4
        log.record_landed(log.end)
        await log.close()


async def test_very_many_are_kept_beside_the_log_before_it_is_trimmed(tmp_path: Path) -> None:
    seen, log = opened(tmp_path / "log", limit=2, keep_every=3)
    await log.append(payload(1, 2, 3), 3)
    assert not (tmp_path / "log" / NAME).exists()
    seen.note_answer(marks(2, 3))
    assert (tmp_path / "log" / NAME).exists()
    await log.close()
    seen, log = opened(tmp_path / "log", limit=2)
    assert len(seen) == 2
    await log.close()


@pytest.mark.parametrize("spoil", [lambda whole: whole[:-1], lambda whole: whole[:-1] + b"\0", lambda _: b""])
async def test_a_damaged_memory_is_refused(tmp_path: Path, spoil: object) -> None:
    seen, log = opened(tmp_path / "log")
    await log.append(payload(1, 2), 2)
    seen.keep(2)
    await log.close()
    file = tmp_path / "log" / NAME
    file.write_bytes(spoil(file.read_bytes()))  # type: ignore[operator]
    with pytest.raises(StoreError, match="is damaged"):
        SeenItems.open(tmp_path / "log")


def test_the_memory_of_a_feed_is_bounded() -> None:
    seen = SeenItems(Path(), seen_module.LIMIT)
    tracemalloc.start()
    seen.note_answer(mark(f"id {number}") for number in range(seen_module.LIMIT + 1_000))
    size_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(seen) == seen_module.LIMIT
    assert size_bytes < 40 << 20
