from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
LOCKS = {
    "requirements.lock": ("client", "lab", "cluster", "dev"),
    "requirements-java.lock": ("java",),
    "requirements-worker.lock": ("worker",),
}


def locked(name: str) -> list[tuple[Requirement, str]]:
    """Each locked requirement with the text of its hashes."""
    entries = re.findall(r"^(\S.*?) \\\n((?:    .*\n?)+)", (ROOT / name).read_text(), flags=re.MULTILINE)
    return [(Requirement(line), hashes) for line, hashes in entries]


@pytest.mark.parametrize("name", LOCKS)
def test_every_line_of_a_lock_is_an_exact_version_or_a_hash_and_names_no_place(name: str) -> None:
    line = r"[a-z0-9-]+==[\w.]+( ; [\w\s.<>=!'()]+)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?"
    assert [each for each in (ROOT / name).read_text().splitlines() if re.fullmatch(line, each) is None] == []
    assert all("--hash=sha256:" in hashes for _, hashes in locked(name))


@pytest.mark.parametrize(("name", "extras"), LOCKS.items())
def test_a_lock_has_a_version_that_fits_for_everything_the_project_asks_for(name: str, extras: tuple[str, ...]) -> None:
    pins = {}
    for pin, _ in locked(name):
        pins.setdefault(canonicalize_name(pin.name), []).append(next(iter(pin.specifier)).version)
    wanted = [Requirement(text) for extra in extras for text in EXTRAS[extra] if not text.startswith("tocsin[")]
    missing = [
        str(each)
        for each in wanted
        if not pins.get(canonicalize_name(each.name))
        or not all(each.specifier.contains(version) for version in pins[canonicalize_name(each.name)])
    ]
    assert missing == []


def test_the_lab_alone_brings_no_engine_and_no_server() -> None:
    assert {Requirement(text).name for text in EXTRAS["lab"]} == {"cyclopts", "matplotlib", "numpy", "pyarrow", "rich"}


def test_the_client_alone_brings_no_engine() -> None:
    assert {Requirement(text).name for text in EXTRAS["client"]} == {
        "aiohttp",
        "orjson",
        "pydantic",
        "cyclopts",
        "rich",
        "prompt_toolkit",
    }
