"""Checks that the live system is installed. The lab itself installs without it."""

from __future__ import annotations

import importlib.util
from typing import Final

from tocsin.wire.errors import InputError

# One package of each part that servers and clients need.
_NEEDED: Final = ("aiohttp", "argon2", "deltalake", "jwt", "psutil", "pyspark", "sqlglot", "uvloop")


def check() -> None:
    """Raises `InputError` if the live system is not installed, with the command that installs it."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        hint = "pip install 'tocsin[lab,cluster]'"
        raise InputError(f"the live system is not installed here: there is no {', '.join(missing)}", hint=hint)
