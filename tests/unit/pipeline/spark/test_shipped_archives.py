from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.unit.test_dependency_locks import EXTRAS
from tocsin.pipeline.spark import shipped_archives
from tocsin.pipeline.spark.shipped_archives import (
    ROOTS,
    foreign_packages,
    pack,
    pack_users_files,
    pack_worker_modules,
    worker_modules,
)
from tocsin.pipeline.spark.worker_check import MODULES
from tocsin.wire.errors import LimitError


def test_workers_need_what_the_list_for_them_says() -> None:
    wanted = {Requirement(text).name for text in EXTRAS["worker"]}
    assert foreign_packages() == wanted
    assert wanted <= set(MODULES), "the start checks for all of them"


def test_nothing_of_the_driver_is_sent() -> None:
    tops = {name.split("/")[1] for name in worker_modules()}
    assert tops <= {"__init__.py", "clock.py", "pipeline", "rules", "wire"}
    assert not any(name.startswith("tocsin/pipeline/session") for name in worker_modules())


def test_the_archive_alone_is_enough_to_import_what_workers_run(tmp_path: Path) -> None:
    archive = pack_worker_modules(tmp_path)
    code = f"import {', '.join(ROOTS)}; print({ROOTS[0]}.__file__)"
    # pyarrow is installed where this test runs; of us nothing but the archive is on the path.
    site = [entry for entry in sys.path if entry.endswith("site-packages")]
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": ":".join([str(archive), *site])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == f"{archive}/tocsin/pipeline/python/worker.py", done.stderr


def test_the_name_of_an_archive_says_its_content(tmp_path: Path) -> None:
    first = pack({"a.py": b"1", "b.py": b"2"}, tmp_path, "x")
    again = pack({"b.py": b"2", "a.py": b"1"}, tmp_path, "x")
    other = pack({"a.py": b"12", "b.py": b""}, tmp_path, "x")
    assert first == again
    assert first != other
    with zipfile.ZipFile(other) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {"a.py": b"12", "b.py": b""}
    assert sorted(tmp_path.iterdir()) == sorted([first, other]), "no drafts are left"


def test_users_files_are_packed_with_their_folders_and_without_what_is_compiled(tmp_path: Path) -> None:
    folder = tmp_path / "python"
    for name in ("m.py", "p/__init__.py", "p/words.txt", "__pycache__/m.pyc", ".git/x", ".hidden"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    with zipfile.ZipFile(pack_users_files(folder, tmp_path)) as archive:
        assert archive.namelist() == ["m.py", "p/__init__.py", "p/words.txt"]


def test_a_folder_that_does_not_exist_is_an_empty_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(pack_users_files(tmp_path / "none", tmp_path)) as archive:
        assert archive.namelist() == []


def test_a_folder_that_is_too_large_to_send_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped_archives, "SIZE_LIMIT_BYTES", 2)
    (tmp_path / "m.py").write_text("123")
    with pytest.raises(LimitError, match="exceed"):
        pack_users_files(tmp_path, tmp_path / "to")
