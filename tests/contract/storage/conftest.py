"""An empty folder of each kind of storage."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.s3_server import S3Server
from tocsin.storage.interface import StorageFolder
from tocsin.storage.local import LocalFolder


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.cluster)])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> StorageFolder:
    if request.param == "file":
        return LocalFolder(tmp_path / "some" / "prefix")
    server: S3Server = request.getfixturevalue("s3_server")
    return server.new_folder()
