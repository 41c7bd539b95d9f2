"""What is saved, and where to: a folder, or one tar file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.example_backup import Data, rows


@pytest.fixture
async def data(tmp_path: Path) -> Any:
    made = Data(tmp_path / "data")
    await made.store.open()
    table = await made.create("reports")
    table.insert(rows(1, 2, 3))
    table.upsert(rows(2, word="y"))
    await made.create("empty")
    yield made
    await made.store.close()


@pytest.fixture(params=["saved", "saved.tar"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / str(request.param)
