"""Fetches the jars with which Spark reads S3, once, into the user's cache; their checksums are in `s3a_jars.lock`.

They are Hadoop's `s3a:` file system and the modules of AWS that it uses: 13 MB instead of the 600 MB of the bundle that
Hadoop names. What Spark has itself is left out. Only a cluster whose tables are on S3 needs them.

    the cache has them all  →  nothing is fetched
    otherwise               →  Spark's own resolver fetches them, from Maven Central or where the site's settings say
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tocsin.pipeline.java import ensure_java, user_cache
from tocsin.wire.errors import UnavailableError

LOCK: Final = Path(__file__).with_name("s3a_jars.lock")
_TIMEOUT_S: Final = 600.0
# What Spark has itself, or what only features need that nothing here uses.
_EXCLUDED: Final = (
    "software.amazon.awssdk:bundle,org.slf4j:*,org.apache.httpcomponents:*,org.wildfly*:*,com.*:*,io.netty:*,javax*:*,"
    "commons*:*,jakarta*:*"
)
# The site's own way to Maven repositories.
_SITE_SETTINGS: Final = ("spark.jars.ivySettings", "spark.jars.repositories")
_ENTRY: Final = re.compile(r"^([\w.-]+):([\w.-]+):([\w.-]+) \\\n    --hash=sha256:([0-9a-f]{64})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class LockedJar:
    """A jar by its Maven coordinates, with the only content that is accepted."""

    group: str
    name: str
    version: str
    sha256: str

    @property
    def coordinates(self) -> str:
        return f"{self.group}:{self.name}:{self.version}"

    @property
    def file(self) -> str:
        """The name that Spark's resolver gives the file."""
        return f"{self.group}_{self.name}-{self.version}.jar"


Resolver = Callable[[list[LockedJar], Path, Mapping[str, str]], None]
"""Fetches the jars into a folder, with these settings of Spark."""


def locked_jars(lock: Path = LOCK) -> list[LockedJar]:
    return [LockedJar(*match) for match in _ENTRY.findall(lock.read_text("utf-8"))]


def ensure_s3a_jars(
    settings: Mapping[str, str], *, cache: Path | None = None, resolve: Resolver | None = None
) -> tuple[str, ...]:
    """Returns the paths of the jars, which are fetched if the cache lacks them. Raises UnavailableError with the
    remedy."""
    jars = locked_jars()
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]
    folder = (cache or user_cache(os.environ)) / "s3a" / digest
    if any(_problem(folder, jar) for jar in jars):
        _fetch(jars, folder, settings, resolve or _resolve_with_spark)
    return tuple(str(folder / jar.file) for jar in jars)


def _problem(folder: Path, jar: LockedJar) -> str | None:
    try:
        content = (folder / jar.file).read_bytes()
    except OSError:
        return f"{jar.coordinates} is missing"
    found = hashlib.sha256(content).hexdigest()
    return None if found == jar.sha256 else f"{jar.coordinates} has the checksum {found} instead of {jar.sha256}"


def _fetch(jars: list[LockedJar], folder: Path, settings: Mapping[str, str], resolve: Resolver) -> None:
    remedy = (
        f"Maven Central must be reachable, or a mirror by {' or '.join(_SITE_SETTINGS)} in cluster.spark.conf; "
        f"or put the files that {LOCK.name} lists into {folder}"
    )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as name:
            fetched = Path(name, "jars")
            resolve(jars, Path(name), settings)
            problems = list(filter(None, (_problem(fetched, jar) for jar in jars)))
            if problems:
                raise UnavailableError(f"the jars for S3 could not be fetched: {'; '.join(problems[:3])}", hint=remedy)
            shutil.rmtree(folder, ignore_errors=True)
            fetched.replace(folder)
    except OSError as error:
        raise UnavailableError(
            f"the jars for S3 could not be kept in {folder}: {error.strerror}", hint=remedy
        ) from error


def _resolve_with_spark(jars: list[LockedJar], folder: Path, settings: Mapping[str, str]) -> None:
    """Has spark-submit resolve the jars into `jars` below the folder, and run a program that ends at once."""
    import pyspark

    ensure_java()
    home = Path(pyspark.__file__).parent
    command = [
        str(home / "bin" / "spark-submit"), "--master", "local[1]", "--class", "org.apache.hadoop.util.VersionInfo",
        "--packages", ",".join(jar.coordinates for jar in jars),
        "--conf", f"spark.jars.ivy={folder}", "--conf", f"spark.jars.excludes={_EXCLUDED}",
    ]  # fmt: skip
    for name in _SITE_SETTINGS:
        if name in settings:
            command += ["--conf", f"{name}={settings[name]}"]
    # Another installation's settings could add packages of its own.
    env = {**os.environ, "SPARK_HOME": str(home), "SPARK_CONF_DIR": str(folder)}
    try:
        done = subprocess.run(
            [*command, "spark-internal"], env=env, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"the jars for S3 could not be fetched within {_TIMEOUT_S:g} s") from None
    if done.returncode:
        (folder / "jars").mkdir(exist_ok=True)  # the caller lists what is missing
