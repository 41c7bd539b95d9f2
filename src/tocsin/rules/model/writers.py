"""Values are written by a table: a writer for each class of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Written = TypeVar("Written")


def writer_of(writers: Mapping[type, Callable[[Any], Written]], value: Any) -> Callable[[Any], Written]:
    """The writer for a value whose class the table may not name, but one that it comes from. TypeError for what is no
    value."""
    for base, write in writers.items():
        if isinstance(value, base):
            return write
    raise TypeError(f"not a value: {value.__class__.__name__}")
