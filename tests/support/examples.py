"""How many examples a property tries: all of them in `./dev test --all`, a few in `./dev test`."""

from __future__ import annotations

_QUICK_SHARE = 8
_LEAST = 2

is_quick = False
"""Set when the run begins, before tests are collected."""


def examples(full: int) -> int:
    return max(min(full, _LEAST), full // _QUICK_SHARE) if is_quick else full
