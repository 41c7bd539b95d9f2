"""What Spark's Python workers are told of a function, and what they say when it fails. Everything here is pickled."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tocsin.rules.model.types import Type


@dataclass(frozen=True, slots=True)
class Code:
    """Where a function is: `module:function`, found in the folder or among the installed packages.

    Files of the folder are imported anew when `version` is another than before. What is printed goes to the file
    `said`.
    """

    target: str
    folder: str
    version: str
    said: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Signature:
    """How it is called: the types of its arguments, and of what it gives; `optional`: that may be None.

    With `each`, what it fails on is told beside what it gives of the rest: columns `value` and `failed`.
    """

    name: str
    arguments: tuple[Type, ...]
    returns: Type
    optional: bool
    each: bool = False


class CallError(Exception):
    """A function that cannot be called (`usable` is false), or that failed on its arguments.

    It crosses from the worker to the cluster in the text of Spark's exception, where `found_in` finds it.
    """

    def __init__(self, message: str, hint: str | None = None, *, usable: bool = True) -> None:
        super().__init__(json.dumps([message, hint, usable]))
        self.message, self.hint, self.usable = message, hint, usable

    def __reduce__(self) -> Any:
        return _again, (self.message, self.hint, self.usable)


def _again(message: str, hint: str | None, usable: bool) -> CallError:
    return CallError(message, hint, usable=usable)


def found_in(text: str) -> CallError | None:
    """The error whose text Spark repeats in its own."""
    marker = f"{CallError.__module__}.{CallError.__qualname__}: "
    for line in text.splitlines():
        _, found, rest = line.partition(marker)
        if found:
            try:
                (message, hint, usable), _ = json.JSONDecoder().raw_decode(rest)
            except ValueError:
                continue
            return CallError(message, hint, usable=usable)
    return None
