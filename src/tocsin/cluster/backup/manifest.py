"""The manifest of a backup: every file with its checksum, and the state of every dataset.

A restore writes only the files that the manifest names. So the manifest has a checksum of itself, and a path that does
not belong into a data folder is refused: no backup can write elsewhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any, Final

from tocsin.store.broker.files import is_brokers
from tocsin.wire.errors import StoreError

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
CATALOG: Final = "catalog.sqlite"
CHANNELS: Final = "channels.db"
DATASETS: Final = "datasets"
INTAKE: Final = "intake"  # the feeds' logs: acknowledged records that may not have landed yet
PYTHON: Final = "python"  # the modules of Python functions, if they are in the data folder
MANIFEST_LIMIT_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class FileChecksum:
    """One file; `path` is relative and uses slashes."""

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class DatasetState:
    """The state of one dataset: our commit number, and the version of its Delta table."""

    folder: str
    commit: int
    version: int
    rows: int


@dataclass(frozen=True, slots=True)
class Manifest:
    epoch: int
    created_at: datetime
    tocsin: str
    files: tuple[FileChecksum, ...]
    datasets: tuple[DatasetState, ...]
    format: int = FORMAT

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def rows(self) -> int:
        return sum(dataset.rows for dataset in self.datasets)

    @property
    def brokers(self) -> list[str]:
        """The files of brokers that are in the data folder."""
        return [file.path for file in self.files if is_brokers(file.path)]

    def summary(self) -> dict[str, Any]:
        """Returns a summary for people; it is also an HTTP answer."""
        return {
            "created_at": self.created_at.isoformat(),
            "epoch": self.epoch,
            "tocsin": self.tocsin,
            "datasets": len(self.datasets),
            "rows": self.rows,
            "brokers": len(self.brokers),
            "files": len(self.files),
            "size_bytes": self.size_bytes,
            "checked": True,
        }

    def to_bytes(self) -> bytes:
        body = {**asdict(self), "created_at": self.created_at.isoformat()}
        return json.dumps({**body, "sha256": digest_of(body)}, indent=1).encode() + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes) -> Manifest:
        """Parses a manifest. Raises StoreError if it is damaged, or newer than this program."""
        try:
            body = json.loads(content)
            digest = body.pop("sha256")
            format_ = body["format"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise StoreError(f"the backup is damaged: {MANIFEST} cannot be read") from None
        if not isinstance(format_, int) or format_ > FORMAT:
            raise StoreError(
                f"the backup has the format {format_}, newer than this program knows ({FORMAT})",
                hint="restore it with the Tocsin that wrote it, or a newer one",
            )
        # The checksum detects a changed digit in the manifest itself.
        if digest != digest_of(body):
            raise StoreError(f"the backup is damaged: {MANIFEST} is not as it was written")
        try:
            files = tuple(
                FileChecksum(_safe(file["path"]), file["size_bytes"], file["sha256"]) for file in body["files"]
            )
            datasets = tuple(DatasetState(**state) for state in body["datasets"])
            for dataset in datasets:
                _safe(f"{DATASETS}/{dataset.folder}/_")
            created_at = datetime.fromisoformat(body["created_at"])
            return cls(body["epoch"], created_at, body["tocsin"], files, datasets, format_)
        except (ValueError, KeyError, TypeError):
            raise StoreError(f"the backup is damaged: {MANIFEST} cannot be read") from None


def is_inside(path: str) -> bool:
    """Whether a relative path stays inside the folder and is in its normal form."""
    parts = PurePosixPath(path).parts
    return (
        bool(parts)
        and not path.startswith("/")
        and ".." not in parts
        and "\0" not in path
        and str(PurePosixPath(path)) == path
    )


def _safe(path: str) -> str:
    parts = PurePosixPath(path).parts
    least_parts = {DATASETS: 3, INTAKE: 3, PYTHON: 2}  # the least number of path parts in each folder
    is_store = path in (CATALOG, CHANNELS) or is_brokers(path)
    if not is_inside(path) or not (is_store or (parts[0] in least_parts and len(parts) >= least_parts[parts[0]])):
        raise StoreError(f"the backup names a file that does not belong into a data folder: {path!r}")
    return path


def digest_of(body: Mapping[str, Any]) -> str:
    """Returns the checksum that a manifest with this body must have."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
