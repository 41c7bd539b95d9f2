"""Datasets' logs as an older Tocsin wrote them: without checksums."""

from __future__ import annotations

import json

from tests.support.dataset_files import entry_path
from tocsin.pipeline.datasets.delta.log_files import log_versions
from tocsin.storage.interface import StorageFolder


def without_checksum(content: bytes) -> bytes:
    first, *others = content.split(b"\n")
    info = json.loads(first)["commitInfo"]
    del info["tocsin.actions"], info["tocsin.check"]
    return b"\n".join([json.dumps({"commitInfo": info}).encode(), *others])


def remove_checksums(folder: StorageFolder) -> None:
    """Makes the log of the dataset in this folder one of an older Tocsin."""
    for version in log_versions(folder)[0]:
        entry = entry_path(folder, version)
        entry.write_bytes(without_checksum(entry.read_bytes()))
