"""One test's dataverse, with a module of its own for functions in Python."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.support.in_process_cluster import LocalCluster


class Modules:
    """A test's own module in the folder of the cluster."""

    def __init__(self, folder: Path) -> None:
        self.name = f"m{uuid4().hex}"
        self._folder = folder

    @property
    def file(self) -> Path:
        return self._folder / f"{self.name}.py"

    def write(self, text: str) -> None:
        self._folder.mkdir(exist_ok=True)
        # As editors do: the file is never seen half-written.
        draft = self.file.with_suffix(".draft")
        draft.write_text(textwrap.dedent(text))
        draft.replace(self.file)


class PythonDataverse:
    def __init__(self, cluster: LocalCluster, dataverse: str) -> None:
        self.cluster = cluster
        self.dataverse = dataverse
        self.module = Modules(cluster.settings.data / "python")

    def run(self, script: str) -> list[dict[str, Any]]:
        return [outcome.summary for outcome in self.cluster.run(f"USE {self.dataverse}; {script}")][1:]

    def rows(self, query: str) -> list[Any]:
        return self.cluster.rows(f"USE {self.dataverse}; {query}")

    def value(self, expression: str) -> Any:
        (only,) = self.rows(expression)
        return only

    def create(self, head: str, function: str = "f") -> None:
        self.run(f'CREATE FUNCTION {head} LANGUAGE PYTHON AS "{self.module.name}:{function}"')
