"""The paper's names of policies: some name an eviction and an expiry at once."""

from __future__ import annotations

from typing import Any, Final

_NAMED: Final[dict[str, dict[str, str]]] = {"nc": {"eviction": "none"}, "ttl": {"eviction": "exp", "expiry": "ttl"}}


def named(policy: str) -> dict[str, Any]:
    """The caching settings that the name stands for; that of an eviction stands for itself."""
    return dict(_NAMED.get(policy, {"eviction": policy}))
