"""What Spark notes of the files it has found: read as it wrote it, and mended where a power cut tore it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tocsin.pipeline.landing.streaming_checkpoint import Checkpoint


def _entry(path: str, changed: int, look: int) -> str:
    return json.dumps({"path": path, "timestamp": changed, "batchId": look})


class Notes:
    """Written as Spark writes them; the checksums hold nothing, for nobody here looks at them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._write("metadata", '{"id":"x"}')

    def _write(self, name: str, *lines: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines))
        path.with_name(f".{path.name}.crc").write_bytes(b"crc")

    def look(self, source: int, number: int, *found: tuple[str, int]) -> None:
        self._write(f"sources/{source}/{number}", "v1", *(_entry(path, changed, number) for path, changed in found))

    def compact_look(self, number: int, *found: tuple[str, int, int]) -> None:
        """Of the first source, with the looks before it."""
        self._write(f"sources/0/{number}.compact", "v1", *(_entry(*item) for item in found))

    def batch(self, number: int, *looks: int | None) -> None:
        after = ["-" if look is None else json.dumps({"logOffset": look}) for look in looks]
        self._write(f"offsets/{number}", "v1", "{}", *after)

    def commit(self, number: int) -> None:
        self._write(f"commits/{number}", "v1", '{"nextBatchWatermarkMs":0}')

    def names(self) -> set[str]:
        found = (path for path in self.folder.rglob("*") if path.is_file() and not path.name.endswith(".crc"))
        return {path.relative_to(self.folder).as_posix() for path in found}


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    """Two batches; the second is not done."""
    made = Notes(tmp_path / "notes")
    made.look(0, 0, ("file:///in/b", 2), ("file:///in/a%20%231%25", 1))
    made.batch(0, 0)
    made.commit(0)
    made.look(0, 1, ("file:///in/c", 3))
    made.batch(1, 1)
    return made


def test_a_batch_has_the_files_of_its_looks_oldest_first(notes: Notes) -> None:
    checkpoint = Checkpoint(notes.folder)
    assert checkpoint.last_batch == 1
    assert checkpoint.files(0) == [Path("/in/a #1%"), Path("/in/b")]
    assert checkpoint.files(1) == [Path("/in/c")]


def test_before_the_first_batch_there_is_none(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "none")
    checkpoint.mend()
    assert checkpoint.last_batch == -1


def test_a_batch_may_reach_over_several_looks_of_several_sources(notes: Notes) -> None:
    notes.look(0, 2, ("file:///in/z", 9))
    notes.look(0, 3, ("file:///in/y", 5))
    notes.look(1, 0, ("file:///else/x", 7))
    notes.batch(2, 3, 0)
    assert Checkpoint(notes.folder).files(2) == [Path("/in/y"), Path("/else/x"), Path("/in/z")]


def test_a_source_that_has_found_nothing_has_no_files(notes: Notes) -> None:
    notes.batch(2, 1, None)
    assert Checkpoint(notes.folder).files(2) == []


def test_a_compact_note_holds_the_files_of_earlier_looks_too(notes: Notes) -> None:
    notes.compact_look(2, ("file:///in/a", 1, 0), ("file:///in/b", 2, 1), ("file:///in/d", 3, 2))
    notes.batch(2, 2)
    assert Checkpoint(notes.folder).files(2) == [Path("/in/d")]


def test_what_is_whole_is_left_alone(notes: Notes) -> None:
    before = notes.names()
    checkpoint = Checkpoint(notes.folder)
    checkpoint.sync()
    checkpoint.mend()
    checkpoint.sync()
    assert notes.names() == before


@pytest.mark.parametrize("torn", ["", "v1", "v1\n", 'v1\n{"path":"file:///in'])
@pytest.mark.parametrize(
    ("name", "gone"),
    [
        ("commits/0", {"commits/0"}),
        ("offsets/1", {"offsets/1"}),
        # A batch is nothing without the files that it names.
        ("sources/0/1", {"sources/0/1", "offsets/1"}),
    ],
)
def test_the_newest_note_goes_where_it_is_torn(notes: Notes, torn: str, name: str, gone: set[str]) -> None:
    before = notes.names()
    (notes.folder / name).write_text(torn)
    Checkpoint(notes.folder).mend()
    assert notes.names() == before - gone


def test_a_torn_checksum_does_not_outlive_its_note(notes: Notes) -> None:
    Checkpoint(notes.folder).mend()
    left = {path.relative_to(notes.folder).as_posix() for path in notes.folder.rglob("*.crc")}
    assert left == {".metadata.crc", "sources/0/.0.crc", "offsets/.0.crc"}


def test_metadata_that_are_torn_go(notes: Notes) -> None:
    (notes.folder / "metadata").write_text("")
    Checkpoint(notes.folder).mend()
    assert "metadata" not in notes.names()
