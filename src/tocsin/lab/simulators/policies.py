"""Translates the paper's policy names: some mean an eviction and an expiry at once."""

from __future__ import annotations

from typing import Any, Final

_NAMED: Final[dict[str, dict[str, str]]] = {"nc": {"eviction": "none"}, "ttl": {"eviction": "exp", "expiry": "ttl"}}


def policy_settings(policy: str) -> dict[str, Any]:
    """Returns the caching settings of a policy name; the name of an eviction means itself."""
    return dict(_NAMED.get(policy, {"eviction": policy}))
