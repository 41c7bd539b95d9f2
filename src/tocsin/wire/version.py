"""The version of this Tocsin, which documents, backups and requests name.

It comes from the installed package, so that it is stated once.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed


def version() -> str:
    """The version of the installed package; "0+source" for a tree that was never installed."""
    try:
        return installed("tocsin")
    except PackageNotFoundError:
        return "0+source"
