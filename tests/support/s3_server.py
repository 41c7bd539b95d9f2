"""A real S3 server for tests: versitygw, a gateway over a folder, on a free loopback port.

The server is built once, with Go, into the cache folder of the user. `TEST_VERSITYGW` names another binary.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from tests.support.waiting import WITHIN_S
from tocsin.storage.s3 import Bucket, S3Folder

_SOURCE = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tocsin-tests" / "bin"
_BUILD_S = 1_200
_file_systems: dict[str, fs.S3FileSystem] = {}  # by bucket, for what knows only a path


@dataclass(slots=True)
class S3Server:
    """`start` and `kill` let a test take the server away; the objects stay in `folder`."""

    binary: Path
    folder: Path
    port: int
    access_key: str = field(default_factory=lambda: secrets.token_hex(8))
    secret_key: str = field(default_factory=lambda: secrets.token_hex(16))
    _process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def options(self) -> dict[str, str]:
        """The setting cluster.storage.options."""
        return {
            "endpoint": self.endpoint, "allow_http": "true", "region": "us-east-1",
            "access_key_id": self.access_key, "secret_access_key": self.secret_key,
        }  # fmt: skip

    def new_bucket(self) -> str:
        name = f"b-{secrets.token_hex(6)}"
        (self.folder / name).mkdir()
        return name

    def new_folder(self) -> S3Folder:
        """A folder in a new bucket."""
        bucket = Bucket(self.new_bucket(), self.options)
        self.know(bucket)
        return S3Folder(bucket, "some/prefix")

    def know(self, bucket: Bucket) -> None:
        """Lets `read_data_file` read from this bucket."""
        _file_systems[bucket.name] = bucket.file_system

    def start(self) -> None:
        command = [
            str(self.binary), "--access", self.access_key, "--secret", self.secret_key,
            "--port", f"127.0.0.1:{self.port}", "--quiet", "posix", str(self.folder),
        ]  # fmt: skip
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until_s = time.monotonic() + WITHIN_S
        while time.monotonic() < until_s:
            with socket.socket() as connection:
                if connection.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self._process.poll() is None, "the S3 server ended at once"
            time.sleep(0.02)
        raise AssertionError("the S3 server did not start")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def find_binary() -> Path:
    """The server's binary, built if it is missing. Skips the test if there is no Go."""
    named = os.environ.get("TEST_VERSITYGW")
    if named:
        return Path(named)
    binary = _CACHE / "versitygw"
    if not binary.exists():
        go = shutil.which("go")
        if go is None:
            pytest.skip("there is no Go, which builds the S3 server of these tests (versitygw)")
        _CACHE.mkdir(parents=True, exist_ok=True)
        built = subprocess.run(
            [go, "install", _SOURCE], env={**os.environ, "GOBIN": str(_CACHE), "GOFLAGS": "-buildvcs=false"},
            capture_output=True, text=True, timeout=_BUILD_S, check=False,
        )  # fmt: skip
        if built.returncode:
            pytest.skip(f"the S3 server of these tests could not be built: {built.stderr[-300:]}")
    return binary


@contextmanager
def running_s3_server(folder: Path) -> Iterator[S3Server]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder.mkdir(parents=True, exist_ok=True)
    server = S3Server(find_binary(), folder, port)
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


def read_data_file(path: str) -> pa.Table:
    """The rows of a file of a snapshot, wherever it is."""
    if not path.startswith("s3a://"):
        return pq.ParquetFile(path).read()
    with _file_systems[path.split("/")[2]].open_input_file(path.removeprefix("s3a://")) as source:
        return pq.ParquetFile(source).read()


def list_objects(folder: S3Folder) -> list[str]:
    """The names of all objects below a folder."""
    selector = fs.FileSelector(f"{folder.bucket.name}/{folder.prefix}", recursive=True, allow_not_found=True)
    found = folder.bucket.file_system.get_file_info(selector)
    return sorted(about.path for about in found if about.type == fs.FileType.File)
