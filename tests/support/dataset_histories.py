"""What a cluster should hold, and what it does hold, in one form that can be compared."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tests.support.sparkless_process import Parts


@dataclass(frozen=True)
class ClusterContent:
    """All that a cluster holds: its catalog, and each dataset's rows and commit number."""

    things: frozenset[str] = frozenset()
    rows: dict[str, dict[int, str]] = field(default_factory=dict)
    commits: dict[str, int] = field(default_factory=dict)

    def made(self, thing: str) -> ClusterContent:
        world = replace(self, things=self.things | {thing})
        return world.wrote(thing.split()[1], {}, commit=0) if thing.startswith("dataset ") else world

    def dropped(self, *things: str) -> ClusterContent:
        gone = {thing.split()[1] for thing in things if thing.startswith("dataset ")}
        rows = {name: rows for name, rows in self.rows.items() if name not in gone}
        commits = {name: number for name, number in self.commits.items() if name not in gone}
        return ClusterContent(self.things - set(things), rows, commits)

    def wrote(self, name: str, rows: dict[int, str], commit: int = 1) -> ClusterContent:
        """The dataset now holds these rows, `commit` commits later."""
        number = self.commits.get(name, 0) + commit
        return replace(self, rows={**self.rows, name: rows}, commits={**self.commits, name: number})


EMPTY = ClusterContent(frozenset({"dataverse Default", "dataverse Metadata"}))


def seen(parts: Parts) -> ClusterContent:
    """What the cluster holds, with every promise about it that holds at any time."""
    catalog = parts.catalog.catalog
    things = {f"{ref.kind} {ref.name}" for ref in catalog.entries}
    world = ClusterContent(frozenset(things))
    for entry in catalog.datasets:
        rows = parts.rows(entry)
        assert len({row["id"] for row in rows}) == len(rows), "a key is there twice"
        number = parts.tables.table(entry).number
        assert {row["_commit"] for row in rows} <= set(range(1, number + 1))
        world = world.wrote(entry.name, {row["id"]: row["said"] for row in rows}, number)
    folders = {path.name for path in (parts.settings.data / "datasets").iterdir()}
    assert folders == {entry.folder for entry in catalog.datasets}
    return world
