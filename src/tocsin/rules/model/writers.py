"""Finds the function that writes a value, in a table of one writer per class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Written = TypeVar("Written")


def writer_of(writers: Mapping[type, Callable[[Any], Written]], value: Any) -> Callable[[Any], Written]:
    """Returns the writer of a class that the value is an instance of. Raises TypeError if there is none."""
    for base, write in writers.items():
        if isinstance(value, base):
            return write
    raise TypeError(f"not a value: {value.__class__.__name__}")
