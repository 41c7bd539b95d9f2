"""A folder in a bucket of an object store that speaks S3.

A put shows the whole object or nothing, and is durable when the store has answered: so there is nothing to sync, and no
object is ever torn. pyarrow has no conditional put; delta-rs has one, so it makes the commits (see `log_writers`).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import fs

from tocsin.storage.interface import Draft, StorageFolder, StoredFile, copy_in_pieces
from tocsin.wire.errors import InputError, UnavailableError

_CONNECT_S: Final = 10.0
_ATTEMPTS: Final = 3
_DELTA_RETRY_S: Final = 30


@dataclass(frozen=True)
class Bucket:
    """A bucket and the way to it. Its text shows no secret."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def file_system(self) -> fs.S3FileSystem:
        endpoint = self.options.get("endpoint", "")
        scheme, separator, host = endpoint.rpartition("://")
        return fs.S3FileSystem(
            access_key=self.options.get("access_key_id"), secret_key=self.options.get("secret_access_key"),
            session_token=self.options.get("session_token"), region=self.options.get("region"),
            endpoint_override=host.rstrip("/") or None, scheme=scheme if separator else None,
            force_virtual_addressing=self.options.get("path_style") == "false",
            connect_timeout=_CONNECT_S, allow_delayed_open=True,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
        )  # fmt: skip

    @cached_property
    def delta_options(self) -> dict[str, str]:
        names = {
            "endpoint": "AWS_ENDPOINT_URL", "region": "AWS_REGION", "access_key_id": "AWS_ACCESS_KEY_ID",
            "secret_access_key": "AWS_SECRET_ACCESS_KEY", "session_token": "AWS_SESSION_TOKEN",
            "allow_http": "AWS_ALLOW_HTTP",
        }  # fmt: skip
        given = {names[key]: value for key, value in self.options.items() if key in names}
        if "path_style" in self.options:
            given["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] = str(self.options["path_style"] == "false").lower()
        # An entry is put only if its version is free: without this delta-rs would refuse to commit.
        return {**given, "aws_conditional_put": "etag", "retry_timeout": f"{_DELTA_RETRY_S}s"}


@dataclass(frozen=True)
class S3Folder:
    """See the promises of `StorageFolder`. `prefix` has no slash at its ends; it may be empty."""

    bucket: Bucket
    prefix: str

    has_conditional_put = False

    def __str__(self) -> str:
        return self.url

    @property
    def url(self) -> str:
        return f"s3://{self._path}"

    @property
    def _path(self) -> str:
        return f"{self.bucket.name}/{self.prefix}" if self.prefix else self.bucket.name

    @property
    def _files(self) -> fs.S3FileSystem:
        return self.bucket.file_system

    @property
    def name(self) -> str:
        return self._path.rpartition("/")[2]

    @property
    def delta_uri(self) -> str:
        return self.url

    @property
    def delta_options(self) -> dict[str, str] | None:
        return self.bucket.delta_options

    def spark_path(self, name: str = "") -> str:
        return f"s3a://{self._path}/{name}" if name else f"s3a://{self._path}"

    def locate(self, name: str) -> str:
        return f"{self.url}/{name}"

    def child(self, name: str) -> S3Folder:
        return S3Folder(self.bucket, f"{self.prefix}/{name}" if self.prefix else name)

    def check(self) -> None:
        """Raises an error that says what to do unless the bucket is there and can be read. A bucket that is not there
        would look like an empty one.
        """
        try:
            found = self._files.get_file_info(self.bucket.name).type != fs.FileType.NotFound
        except OSError as error:
            raise UnavailableError(
                f"the storage {self.url} does not answer: {_first_line(error)}",
                hint="look at cluster.storage.options (endpoint, region, keys), and whether the store runs",
            ) from error
        if not found:
            raise InputError(
                f"there is no bucket {self.bucket.name}, or these keys may not see it",
                hint="create it first, or correct cluster.storage.url",
            )

    # ---- looking

    def exists(self) -> bool:
        return bool(self._list())

    def list_names(self) -> list[str]:
        return [file.name for file in self.list_files()]

    def list_files(self) -> list[StoredFile]:
        return [
            StoredFile(about.base_name, about.size, about.mtime_ns // 1000)
            for about in self._list()
            if about.type == fs.FileType.File
        ]

    def list_children(self) -> list[str]:
        return sorted(about.base_name for about in self._list())

    def _list(self, *, recursive: bool = False) -> list[fs.FileInfo]:
        selector = fs.FileSelector(self._path, allow_not_found=True, recursive=recursive)
        listed: list[fs.FileInfo] = self._files.get_file_info(selector)
        return listed

    def size_of(self, name: str) -> int | None:
        about = self._files.get_file_info(f"{self._path}/{name}")
        return about.size if about.type == fs.FileType.File else None

    def total_size(self) -> tuple[int, int]:
        sizes = [about.size for about in self._list(recursive=True) if about.type == fs.FileType.File]
        return len(sizes), sum(sizes)

    # ---- reading

    def read(self, name: str) -> bytes:
        with self.open_input(name) as file:
            content: bytes = file.read()
        return content

    def open_input(self, name: str) -> pa.NativeFile:
        return self._files.open_input_file(f"{self._path}/{name}")

    # ---- changing

    def make(self) -> None:
        """An object store has no folders."""

    @contextmanager
    def create(self, draft_name: str) -> Iterator[Draft]:
        # A name of the object may depend on its content, so the content is first written to this machine.
        handle, path = tempfile.mkstemp(prefix="tocsin-", suffix=f"-{draft_name}")
        os.close(handle)
        draft = _UploadedDraft(self, Path(path))
        try:
            yield draft
        finally:
            draft.end()

    def put(self, name: str, content: bytes) -> None:
        with self._files.open_output_stream(f"{self._path}/{name}") as sink:
            sink.write(content)

    def put_if_absent(self, name: str, content: bytes) -> None:
        raise NotImplementedError("delta-rs commits to an object store")

    def sync_file(self, name: str) -> None:
        """An object is durable when it is put."""

    def sync(self) -> None:
        """An object is durable when it is put."""

    def upload(self, source: pa.NativeFile, name: str) -> None:
        """Copies a file here. If that fails, there is no object of this name."""
        size_bytes = -1
        try:
            with self._files.open_output_stream(f"{self._path}/{name}") as sink:
                size_bytes = copy_in_pieces(source, sink)
        except BaseException:
            # To close the stream after an error completes what was uploaded so far.
            with suppress(OSError):
                self.remove([name])
            raise
        if self.size_of(name) != size_bytes:
            raise OSError(f"the object {self.locate(name)} does not have the {size_bytes} bytes that were put")

    def move_file(self, name: str, to: StorageFolder, new_name: str) -> None:
        assert isinstance(to, S3Folder), "both are folders of one storage"
        self._files.copy_file(f"{self._path}/{name}", f"{to._path}/{new_name}")
        self.remove([name])

    def move_to(self, target: StorageFolder) -> None:
        assert isinstance(target, S3Folder), "both are folders of one storage"
        found = self._files.get_file_info(self._path)
        if found.type == fs.FileType.File:
            self._files.copy_file(self._path, target._path)
            self._files.delete_file(self._path)
            return
        for about in self._list(recursive=True):
            if about.type == fs.FileType.File:
                self._files.copy_file(about.path, f"{target._path}{about.path.removeprefix(self._path)}")
        self.remove_all()

    def remove(self, names: Iterable[str]) -> int:
        removed = 0
        for name in names:
            with suppress(FileNotFoundError):
                self._files.delete_file(f"{self._path}/{name}")
                removed += 1
        return removed

    def remove_all(self) -> bool:
        with suppress(OSError):
            self._files.delete_dir(self._path)
        try:
            return not self._list()
        except OSError:
            return False

    def hold(self, name: str, target: Path) -> bool:  # noqa: ARG002
        return False


@dataclass(slots=True)
class _UploadedDraft:
    folder: S3Folder
    path: Path
    sink: pa.NativeFile = field(init=False)

    def __post_init__(self) -> None:
        self.sink = pa.OSFile(str(self.path), "wb")

    def read_back(self) -> pa.NativeFile:
        self.sink.close()
        return pa.OSFile(str(self.path), "rb")

    def publish(self, name: str) -> None:
        with self.read_back() as source:
            self.folder.upload(source, name)

    def end(self) -> None:
        if not self.sink.closed:
            self.sink.close()
        self.path.unlink(missing_ok=True)


def _first_line(error: OSError) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
