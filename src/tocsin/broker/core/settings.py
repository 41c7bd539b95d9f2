"""Settings of the broker core; those of its result caches are in `caching`.

The core reads no configuration: its body, live or simulated, passes these values, so that both run the same core.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tocsin.rules.caching.settings import CachingSettings


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """A wrong value raises ValueError with the name of the setting."""

    caching: CachingSettings = field(default_factory=CachingSettings)
    grace_s: float = 60.0
    """How long a backend subscription outlives its last frontend subscription."""
    page_results: int = 1_000
    """Page size: the largest number of cached results in one delivery to a subscriber that pulls or catches up, and the
    largest number of results in one fetch."""
    page_bytes: int = 4 << 20
    """Page size in bytes: a delivery or a fetch ends with the result that reaches it."""
    fetch_retry_s: float = 1.0
    """The delay before a failed fetch is retried."""
    report_every_s: float = 30.0
    """How often the broker reports to the cluster up to which cursor all its subscribers have acknowledged."""

    def __post_init__(self) -> None:
        for name, minimum in (("grace_s", 0.0), ("fetch_retry_s", 0.0), ("report_every_s", 0.0)):
            if not minimum <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: must be >= {minimum:g} and finite, got {getattr(self, name):g}")
        for name in ("page_results", "page_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be >= 1, got {getattr(self, name)}")
