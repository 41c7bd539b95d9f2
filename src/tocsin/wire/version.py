"""Which Tocsin this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed


def version() -> str:
    """As the package says that was installed; a tree that was never installed has none."""
    try:
        return installed("tocsin")
    except PackageNotFoundError:
        return "0+source"
