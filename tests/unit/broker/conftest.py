"""The cluster that a broker meets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.sparkless_cluster import world


@pytest.fixture
def cluster(tmp_path: Path) -> Any:
    return world(tmp_path / "cluster")
