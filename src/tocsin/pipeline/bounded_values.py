"""Our own functions for Spark in place of those whose time or result grows without a limit, and guards of arguments.

The language calls these (`language/functions/bounds/bounded_calls.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tocsin.language.functions.bounds import call_limits
from tocsin.language.functions.bounds.bounded_calls import (
    FORMAT,
    ITEMS,
    LETTERS,
    LEVENSHTEIN,
    REPEAT,
    SEQUENCE,
)

STEPS: Final = 50_000_000
"""How many pairs of characters levenshtein may compare, which takes a second at most."""
PROBLEM: Final = "tocsin value: "
"""The beginning of these functions' error messages, which have two lines."""
FUNCTIONS: Final = {
    FORMAT: ("BoundedFormat", "STRING"),
    ITEMS: ("BoundedItems", "INT"),
    LETTERS: ("BoundedLetters", "INT"),
    LEVENSHTEIN: ("BoundedLevenshtein", "INT"),
    REPEAT: ("BoundedRepeat", "STRING"),
    SEQUENCE: ("SequenceFits", "BOOLEAN"),
}


def java_source() -> str:
    source = Path(__file__).with_suffix(".java").read_text(encoding="utf-8")
    for name, value in (("LETTERS", call_limits.LETTERS), ("ITEMS", call_limits.ITEMS), ("STEPS", STEPS)):
        source = source.replace(f"@{name}@", str(value)).replace(f"@{name}_SHOWN@", f"{value:,}")
    return source
