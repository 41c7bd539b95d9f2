"""Writes a value of a query's result as JSON.

A statement can make values that no type has checked. So a failure is the statement's error and not ours, and a channel
then searches for the record that the value was made from.
"""

from __future__ import annotations

from typing import Any

import orjson

from tocsin.rules.model.json_form import plain
from tocsin.wire.errors import StatementError


def result_json(value: Any) -> bytes:
    """Raises StatementError if the value cannot be written: the statement made it, for example from a text, and no type
    has checked it. A channel then finds the record that it was made from.
    """
    try:
        return orjson.dumps(plain(value))
    except RecursionError:
        raise _too_deep() from None
    except TypeError as error:  # orjson's only kind of error
        if "Recursion limit" in str(error):
            raise _too_deep() from None
        raise StatementError(f"a result cannot be written as JSON: {error}") from None


def _too_deep() -> StatementError:
    return StatementError("a result is nested too deep to be written as JSON", hint="at most 254 levels")
