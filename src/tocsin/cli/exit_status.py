"""The exit status of a command that failed: 1 after an error message, 2 for a wrong command line or if no server
answers, 3 for a broker whose name another broker has taken over.

Scripts and supervisors decide by it whether to try again.
"""

from __future__ import annotations

from tocsin.wire.errors import EXIT_FENCED, FencedError, TocsinError

_STATUS = {"no_cluster": 2, "no_broker": 2, FencedError.code: EXIT_FENCED}


def exit_status(error: TocsinError) -> int:
    return _STATUS.get(error.code, 1)
