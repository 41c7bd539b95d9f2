"""The broker's own choices beside those of its caches."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tocsin.rules.caching.settings import CachingSettings


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """Wrong ones raise ValueError with the name of the setting."""

    caching: CachingSettings = field(default_factory=CachingSettings)
    grace_s: float = 60.0
    """How long a backend subscription outlives its last frontend subscription."""
    page_results: int = 1_000
    """One delivery to who asks or catches up has at most so many cached results; one fetch has at most so many."""
    page_bytes: int = 4 << 20
    """And each ends with the result that reaches so many bytes."""
    fetch_retry_s: float = 1.0
    """How long after a failed fetch it is asked again."""
    report_every_s: float = 30.0
    """How often the cluster is told what everybody here has."""

    def __post_init__(self) -> None:
        for name, least in (("grace_s", 0.0), ("fetch_retry_s", 0.0), ("report_every_s", 0.0)):
            if not least <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: must be >= {least:g} and finite, got {getattr(self, name):g}")
        for name in ("page_results", "page_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be >= 1, got {getattr(self, name)}")
