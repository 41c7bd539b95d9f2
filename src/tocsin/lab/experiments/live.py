"""What experiments need that are played on the live system as well: the lab itself installs without it."""

from __future__ import annotations

import importlib.util
from typing import Final

from tocsin.wire.errors import InputError

# One of each that the servers and clients need.
_NEEDED: Final = ("aiohttp", "argon2", "deltalake", "jwt", "psutil", "pyspark", "sqlglot", "uvloop")


def check() -> None:
    """`InputError` where the live system is not installed, with what brings it."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        hint = "pip install 'tocsin[lab,cluster]'"
        raise InputError(f"the live system is not installed here: there is no {', '.join(missing)}", hint=hint)
