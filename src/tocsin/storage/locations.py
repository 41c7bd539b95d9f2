"""Opens the storage that the settings name: a folder on this machine, or a prefix in a bucket."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tocsin.storage.interface import StorageFolder
from tocsin.storage.local import LocalFolder
from tocsin.storage.s3 import Bucket, S3Folder
from tocsin.wire.errors import InputError


def open_storage(url: str, options: Mapping[str, str], data: Path) -> StorageFolder:
    """The root of the storage at this URL; without one the data folder. Looks nowhere yet: see `check_storage`."""
    if not url:
        return LocalFolder(data)
    if "://" not in url and not url.startswith("file:"):
        return LocalFolder(Path(url).absolute())
    parts = urlsplit(url)
    match parts.scheme:
        case "file":
            return LocalFolder(Path(unquote(parts.path)))
        case "s3":
            return S3Folder(Bucket(parts.netloc, dict(options)), parts.path.strip("/"))
    raise InputError(
        f"cluster.storage.url: {parts.scheme}: is not supported", hint="use s3://BUCKET/PREFIX or a folder"
    )


def check_storage(storage: StorageFolder) -> None:
    """Raises an error that says what to do unless the storage answers."""
    if isinstance(storage, S3Folder):
        storage.check()


def is_shared(storage: StorageFolder) -> bool:
    """Whether other machines see the storage at the same URL."""
    return isinstance(storage, S3Folder)


def bucket_of(storage: StorageFolder) -> Bucket | None:
    """The bucket that holds the storage; None if a folder of this machine does."""
    return storage.bucket if isinstance(storage, S3Folder) else None
