"""The pickled messages between the cluster and Spark's Python workers about a function and its errors.

What a function's failure says must reach the client, and Spark hands on the text of a worker's exception. An error is
therefore JSON inside that text.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from typing import Any

from tocsin.rules.model.types import Type


@dataclass(frozen=True, slots=True)
class Code:
    """Where a function is: `module:function`, found in the folder or among the installed packages.

    Files of the folder are imported again when `version` changes. Printed output goes to the file `said`, or if that is
    empty to the log of the executor. `archive` is set where workers do not see the folder: Spark has sent them the
    archive and has unpacked it (`placed`). `shown_folder` is what people call the folder.
    """

    target: str
    folder: str
    version: str
    said: str
    timeout_s: float
    shown_folder: str = ""
    archive: str = ""

    def placed(self) -> Code:
        """Returns the code with the folder in which this worker has it."""
        if not self.archive:
            return self
        from pyspark import SparkFiles

        return replace(self, folder=os.path.realpath(SparkFiles.get(self.archive)))


@dataclass(frozen=True, slots=True)
class Signature:
    """How a function is called: the types of its arguments and of its result; `optional`: the result may be None.

    With `each`, a failure does not stop the call: the result has the columns `value` and `failed`.
    """

    name: str
    arguments: tuple[Type, ...]
    returns: Type
    optional: bool
    each: bool = False


class CallError(Exception):
    """A function cannot be called (`usable` is false), or failed on its arguments.

    It travels from the worker to the cluster in the text of Spark's exception, where `parse_call_error` finds it.
    """

    def __init__(self, message: str, hint: str | None = None, *, usable: bool = True) -> None:
        super().__init__(json.dumps([message, hint, usable]))
        self.message, self.hint, self.usable = message, hint, usable

    def __reduce__(self) -> Any:
        return _again, (self.message, self.hint, self.usable)


def _again(message: str, hint: str | None, usable: bool) -> CallError:
    return CallError(message, hint, usable=usable)


def parse_call_error(text: str) -> CallError | None:
    """The error whose text is inside the text of Spark's exception."""
    marker = f"{CallError.__module__}.{CallError.__qualname__}: "
    for line in text.splitlines():
        _, prefix, rest = line.partition(marker)
        if prefix:
            try:
                (message, hint, usable), _ = json.JSONDecoder().raw_decode(rest)
            except ValueError:
                continue
            return CallError(message, hint, usable=usable)
    return None
