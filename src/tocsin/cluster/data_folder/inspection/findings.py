"""The findings of an inspection, and how to tell damage from the changes of a running cluster.

An inspection holds no lock, so that it can run beside a cluster. It looks several times instead: a file that was just
replaced is found at the next attempt, and damage remains.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

Severity = Literal["damaged", "unchecked", "note"]

# A running cluster may remove or replace a file between two reads; only damage shows at every attempt.
_ATTEMPTS: Final = 4
PAUSE_S: Final = 0.25

BRING_BACK: Final = "bring the file back from a copy of the disk, or restore a backup (tocsin restore)"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `path` is a path or a URL; `what` is a name for people, such as `dataset v.D`."""

    severity: Severity
    path: Path | str
    what: str
    problem: str
    remedy: str = BRING_BACK

    @property
    def key(self) -> tuple[Severity, str, str]:
        return self.severity, str(self.path), self.what

    def to_json(self) -> dict[str, Any]:
        return {"path": str(self.path), "what": self.what, "problem": self.problem, "remedy": self.remedy}


@dataclass(slots=True)
class InspectionReport:
    data: Path
    findings: list[Finding] = field(default_factory=list)
    stores: int = 0
    datasets: int = 0
    files: int = 0
    feeds: int = 0
    size_bytes: int = 0
    is_quick: bool = False
    """Whether the contents of data files were left out."""

    def of(self, severity: Severity) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == severity]

    @property
    def status(self) -> Literal["clean", "damaged", "unchecked"]:
        return "damaged" if self.of("damaged") else "unchecked" if self.of("unchecked") else "clean"

    def to_json(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in ("stores", "datasets", "files", "feeds", "size_bytes")}
        problems = {name: [finding.to_json() for finding in self.of(name)] for name in ("damaged", "unchecked")}
        notes = [finding.to_json() for finding in self.of("note")]
        head = {"data": str(self.data), "status": self.status, "is_quick": self.is_quick, "checked": counts}
        return {**head, **problems, "notes": notes}


def confirm_findings(
    look: Callable[[], Iterable[Finding]], *, attempts: int = _ATTEMPTS, pause: Callable[[float], None] = time.sleep
) -> list[Finding]:
    """Returns the findings that every one of several attempts finds. `look` starts anew each time."""
    confirmed = list(look())
    for _ in range(attempts - 1):
        if not confirmed:
            break
        pause(PAUSE_S)
        again = {finding.key: finding for finding in look()}
        confirmed = [again[finding.key] for finding in confirmed if finding.key in again]
    return confirmed


def unreadable_finding(error: OSError, path: Path | str, what: str) -> Finding:
    """Makes a finding of a read error. A disk error is damage; missing rights or limits leave the question open."""
    reason = f"cannot be read: {error.strerror or error}"
    if error.errno == errno.EIO:
        return Finding("damaged", path, what, reason, f"look at the disk; {BRING_BACK}")
    return Finding("unchecked", path, what, reason, "run tocsin check as the user that the cluster runs as")
