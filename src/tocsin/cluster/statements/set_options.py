"""The options that SET gives to the rest of its script.

The original system has many options for its own compiler. A script that sets one of them still runs: the answer says
that the option has no effect here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tocsin.cluster.statements.options import seconds
from tocsin.cluster.statements.outcomes import StatementSummary
from tocsin.language.syntax import statements as st
from tocsin.language.translate.expressions import TranslationError

_SHORT: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?) ?(ms|s|m|h)")
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0}

# Options of the original that describe what the cluster always does: the value that is true here, and the note.
_ALWAYS: Final = {
    "wait-for-completion-procedure": ("true", "EXECUTE waits until a procedure without a period is done"),
    "wait-for-completion-feed": ("false", "START FEED never waits for the end of a feed"),
}


@dataclass(slots=True)
class SetOptions:
    """The options that SET has given to one script so far."""

    timeout_s: float | None = None
    """How long each further statement may take; None: as long as the script."""

    def apply(self, statement: st.SetOption) -> StatementSummary:
        """Applies a SET; the summary says whether it has an effect."""
        name, value = statement.name, statement.value
        if name.lower() == "timeout":
            self.timeout_s = _timeout_s(statement)
            return {"name": name, "value": value, "applied": True}
        if name.lower() in _ALWAYS:
            usual, note = _ALWAYS[name.lower()]
            return {"name": name, "value": value, "applied": value.lower() == usual, "note": note}
        return {"name": name, "value": value, "applied": False, "note": "this option has no effect here"}


def _timeout_s(statement: st.SetOption) -> float:
    match = _SHORT.fullmatch(statement.value.strip().lower())
    try:
        timeout_s = float(match[1]) * _UNIT_S[match[2]] if match else seconds(statement.value)
        if timeout_s <= 0:
            raise ValueError
    except ValueError:
        raise TranslationError(
            f"timeout: expected a duration above zero, got {statement.value[:40]!r}", statement.offset,
            'SET timeout "30s", with ms, s, m or h, or "PT30S"',
        ) from None  # fmt: skip
    return timeout_s
