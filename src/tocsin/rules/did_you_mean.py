"""Suggests the name that a misspelt one was meant to be. Every "did you mean …?" of a hint comes from here.

Queries, DDL, settings and Python functions share one rule, so that the same mistake gets the same hint everywhere.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable


def did_you_mean(
    name: str, names: Iterable[str], *, similarity: float = 0.7, write: Callable[[str], str] = str
) -> str | None:
    """Returns the hint with the most similar name, ignoring case; None if no name is similar enough.

    `write` returns a name as it stands in the hint, for example with quotes.
    """
    by_lower = {candidate.lower(): candidate for candidate in sorted(names)}
    # Nobody misspells a name of more than 100 letters; comparing it would take long.
    similar = difflib.get_close_matches(name.lower()[:100], by_lower, 1, similarity)
    return f"did you mean {write(by_lower[similar[0]])}?" if similar else None
