"""Upgrades a store of any earlier version to the present version.

A version is added at the end and never changed once released. All steps that a store lacks run in one transaction, so
an interrupted upgrade leaves the old version unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from tocsin.wire.errors import StoreError

Dialect: TypeAlias = Literal["sqlite"]


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The statements, per dialect, that lead from the previous version to this one."""

    version: int
    effect: str
    statements: Mapping[Dialect, tuple[str, ...]]


UPGRADES: Final[tuple[Upgrade, ...]] = (
    Upgrade(
        1,
        "facts, catalog entries and tokens",
        {
            "sqlite": (
                "CREATE TABLE facts (name TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL)",
                # AUTOINCREMENT: ids are never reused, so their order is the order of creation.
                """CREATE TABLE entries (
                    id INTEGER PRIMARY KEY AUTOINCREMENT,
                    kind TEXT NOT NULL, dataverse TEXT NOT NULL, name TEXT NOT NULL,
                    body TEXT NOT NULL,
                    UNIQUE (kind, dataverse, name))""",
                """CREATE TABLE tokens (
                    id INTEGER PRIMARY KEY AUTOINCREMENT,
                    name TEXT NOT NULL, digest TEXT NOT NULL UNIQUE, role TEXT NOT NULL,
                    created_at TEXT NOT NULL, revoked_at TEXT)""",
            )
        },
    ),
    Upgrade(
        2,
        "what may be removed from the data folder",
        {
            "sqlite": (
                """CREATE TABLE removals (
                    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, dropped_at TEXT,
                    UNIQUE (kind, name))""",
            )
        },
    ),
    Upgrade(
        3,
        "tokens name the feeds that their holder may publish to",
        {"sqlite": ("ALTER TABLE tokens ADD COLUMN feeds TEXT NOT NULL DEFAULT '[]'",)},
    ),
)


def latest(chain: Sequence[Upgrade] = UPGRADES) -> int:
    return chain[-1].version


def pending_upgrades(version: int, chain: Sequence[Upgrade] = UPGRADES) -> list[Upgrade]:
    """The steps that a store of this version lacks, in order. Raises StoreError if the store is newer than this."""
    if version > latest(chain):
        raise StoreError(
            f"the store has version {version}, and this Tocsin knows versions up to {latest(chain)}",
            hint="start a newer Tocsin, or restore a backup made before the upgrade",
        )
    return [step for step in chain if step.version > version]
