from __future__ import annotations

from pathlib import Path

from tocsin.pipeline.class_archive import class_archive_options


def test_java_is_told_of_an_archive_only_if_there_is_one(tmp_path: Path) -> None:
    archive = tmp_path / "spark-classes.jsa"
    assert class_archive_options(archive) == []
    archive.write_bytes(b"")
    assert class_archive_options(archive) == [f"-XX:SharedArchiveFile={archive}"]
